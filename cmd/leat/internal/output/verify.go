package output

// Finding is something that a check of a log found at a place. Position is a byte
// of the file and offset one of the log, null where it has none.
type Finding struct {
	File     string `json:"file"`
	Position *int64 `json:"position"`
	Offset   *int64 `json:"offset"`
	Detail   string `json:"detail"`
}

// Verification is what log verify prints of a folder. Start and end are offsets.
type Verification struct {
	Dir          string    `json:"dir"`
	OK           bool      `json:"ok"`
	Topic        string    `json:"topic"`
	TopicID      string    `json:"topic_id"`
	Partition    int32     `json:"partition"`
	Start        int64     `json:"start"`
	End          int64     `json:"end"`
	Segments     int       `json:"segments"`
	Batches      int64     `json:"batches"`
	Records      int64     `json:"records"`
	Bytes        int64     `json:"bytes"`
	IndexEntries int64     `json:"index_entries"`
	FaultCount   int       `json:"fault_count"`
	Faults       []Finding `json:"faults"`
	Notes        []Finding `json:"notes"`
	TornBytes    int64     `json:"torn_bytes"`
	Repaired     []string  `json:"repaired"`
}
