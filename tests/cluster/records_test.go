package cluster

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// record is one line of `leat consume -o json`.
type record struct {
	Topic       string   `json:"topic"`
	Partition   int      `json:"partition"`
	Offset      int64    `json:"offset"`
	Timestamp   any      `json:"timestamp"`
	Key         *string  `json:"key"`
	KeyBase64   *string  `json:"key_base64"`
	Value       *string  `json:"value"`
	ValueBase64 *string  `json:"value_base64"`
	Headers     []header `json:"headers"`
	LeaderEpoch *int     `json:"leader_epoch"`
}

type header struct {
	Key         string  `json:"key"`
	Value       *string `json:"value"`
	ValueBase64 *string `json:"value_base64"`
}

// text is the value as text, "" for null.
func (r record) text() string {
	if r.Value != nil {
		return *r.Value
	}
	if r.ValueBase64 != nil {
		raw, _ := base64.StdEncoding.DecodeString(*r.ValueBase64)
		return string(raw)
	}
	return ""
}

func parseRecords(t *testing.T, out string) []record {
	t.Helper()
	var records []record
	for line := range strings.Lines(out) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("not a line of JSON: %q: %v", line, err)
		}
		records = append(records, r)
	}
	return records
}

// ack is one line of --acks-out.
type ack struct {
	Number          int     `json:"number"`
	Partition       *int    `json:"partition"`
	Offset          *int64  `json:"offset"`
	Error           *string `json:"error"`
	Unknown         *string `json:"unknown"`
	MaybeDuplicated bool    `json:"maybe_duplicated"`
}

// parseAcks reads whole lines; a last line cut short by a kill is left out.
func parseAcks(t *testing.T, text string) []ack {
	t.Helper()
	var acks []ack
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var a ack
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("not a line of JSON: %q: %v", line, err)
		}
		acks = append(acks, a)
	}
	return acks
}

var blockID = regexp.MustCompile(`blk_-?[0-9]+`)

// murmur2 is written here a second time on purpose: the tests must not agree
// with the client by sharing its code.
func murmur2(data []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(data))
	for len(data) >= 4 {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h = h*m ^ k
		data = data[4:]
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}

func kafkaPartition(key string, partitions int) int {
	return int(murmur2([]byte(key))&0x7fffffff) % partitions
}

// TestMurmur2KnowsKafkasVectors keeps the yardstick itself honest.
func TestMurmur2KnowsKafkasVectors(t *testing.T) {
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}
