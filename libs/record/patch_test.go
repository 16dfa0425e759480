package record

import (
	"bytes"
	"testing"
)

// Patching the producer's fields gives the bytes that a builder told of them gives,
// wherever the batch is cut into pieces.
func TestPatchProducer(t *testing.T) {
	build := func(id int64, epoch int16, sequence int32) []byte {
		b, err := NewBuilder(DefaultBuilderOptions())
		if err != nil {
			t.Fatal(err)
		}
		b.SetProducer(id, epoch, sequence)
		if _, err := b.Append(&Record{Timestamp: 7, Key: []byte("k"), Value: []byte("value")}); err != nil {
			t.Fatal(err)
		}
		out, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := build(1<<40+3, 32767, 1<<31-1)
	for cut := HeaderSize; cut <= len(want); cut++ {
		got := build(NoProducerID, NoProducerEpoch, NoSequence)
		PatchProducer(got[:cut], [][]byte{got[cut:]}, 1<<40+3, 32767, 1<<31-1)
		if !bytes.Equal(got, want) {
			t.Fatalf("cut at %d:\n%x\n%x", cut, got, want)
		}
	}
}
