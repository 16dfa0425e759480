package record

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzBatch feeds the decoder whatever comes: no panic, typed errors only, and
// what decodes encodes to something that decodes to the same.
func FuzzBatch(f *testing.F) {
	o := DefaultBuilderOptions()
	for c := CompressionNone; c <= CompressionZstd; c++ {
		o.Compression = c
		f.Add(build(f, o, Record{Timestamp: 5, Key: []byte("key"), Value: bytes.Repeat([]byte("v"), 200), Headers: []RecordHeader{{Key: []byte("h")}}}, Record{}))
	}
	f.Add([]byte{})
	f.Add(withBody(-1, nil))
	f.Add(withBody(1, []byte("\x0c\x00\x00\x00\x01\x01\x01")))
	f.Fuzz(func(t *testing.T, b []byte) {
		typed := func(err error) {
			var c *CorruptError
			var i *InvalidError
			var l *TooLargeError
			if err != nil && !errors.As(err, &c) && !errors.As(err, &i) && !errors.As(err, &l) {
				t.Fatalf("an error without a type: %v", err)
			}
		}
		// Most inputs fail at the checksum; mend it to get behind that.
		if len(b) >= HeaderSize {
			b = bytes.Clone(b)
			b[posMagic] = Magic
			seal(b)
		}
		half := len(b) / 2
		vecs := [][]byte{b[:half], b[half:]}
		h1, err1 := ParseHeader(b)
		h2, err2 := ParseHeaderVec(vecs)
		if h1 != h2 || (err1 == nil) != (err2 == nil) {
			t.Fatal("a header in pieces reads otherwise")
		}
		typed(err1)
		_, err := Validate(vecs, ValidateOptions{MaxBytes: 1 << 20})
		typed(err)
		typed(ValidateRecords(vecs, 1<<20))
		records, err := Decode(b, 1<<20)
		typed(err)
		if err != nil || len(records) == 0 {
			return
		}
		o := DefaultBuilderOptions()
		o.MaxBytes = MaxBatchSize
		out, err := Decode(build(t, o, records...), 1<<30)
		if err != nil || len(out) != len(records) {
			t.Fatalf("%d records became %d, %v", len(records), len(out), err)
		}
		for i := range out {
			if !bytes.Equal(out[i].Key, records[i].Key) || (out[i].Value == nil) != (records[i].Value == nil) || out[i].Timestamp != records[i].Timestamp {
				t.Fatalf("record %d changed", i)
			}
		}
	})
}
