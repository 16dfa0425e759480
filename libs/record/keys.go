package record

// RequireKeys checks that every record of a batch that passed Validate has a key, as
// a compacted topic demands: a record without one could be neither superseded nor
// kept. At most maxDecoded bytes are decompressed; 0 or less means
// DefaultMaxDecodedBytes. Control batches pass. The errors are *InvalidError, with
// the index of the first record without a key, and *CorruptError.
func RequireKeys(vecs [][]byte, maxDecoded int) error {
	r := NewReader(maxDecoded)
	defer r.Close()
	if err := r.resetVec(vecs); err != nil {
		return err
	}
	if r.header.Attributes.Control() {
		return nil
	}
	for r.Next() {
		if r.rec.Key == nil {
			return &InvalidError{
				Reason: ReasonBadRecord, Position: HeaderSize + r.pos, Record: r.index - 1,
				Detail: "it has no key, and the topic is compacted: records are kept by key",
			}
		}
	}
	return r.Err()
}
