package replica

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/record"
)

// A run is cut into its batches wherever the buffers that it came in end, and what is
// wrong with it spoils nothing before.
func TestSplitRun(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var whole []byte
	var want [][]byte
	for i := range int64(20) {
		b, err := record.NewBuilder(record.DefaultBuilderOptions())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Append(&record.Record{Value: []byte(strings.Repeat("v", random.IntN(300)))}); err != nil {
			t.Fatal(err)
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		record.PatchBaseOffset(batch, i)
		record.PatchPartitionLeaderEpoch(batch, int32(i/10))
		want = append(want, bytes.Clone(batch))
		whole = append(whole, batch...)
	}
	cut := func(data []byte) (vecs [][]byte) {
		for len(data) > 0 {
			n := min(random.IntN(200)+1, len(data))
			vecs, data = append(vecs, data[:n]), data[n:]
		}
		return vecs
	}
	check := func(what string, vecs [][]byte, epoch int32, good int) error {
		t.Helper()
		batches, headers, err := splitRun(vecs, epoch)
		if len(batches) != good || len(headers) != good || (err == nil) != (good == len(want)) {
			t.Fatalf("%s: %d batches and %d headers of %d, %v", what, len(batches), len(headers), good, err)
		}
		for i, b := range batches {
			if !bytes.Equal(bytes.Join(b, nil), want[i]) {
				t.Errorf("%s: batch %d differs", what, i)
			}
		}
		return err
	}
	for range 50 {
		check("whole", cut(whole), 1, len(want))
	}
	var corrupt *record.CorruptError
	if err := check("short", cut(whole[:len(whole)-5]), 1, len(want)-1); !errors.As(err, &corrupt) {
		t.Error(err)
	}
	if err := check("an epoch to come", cut(whole), 0, 10); !errors.As(err, &corrupt) {
		t.Error(err)
	}
	damaged := bytes.Clone(whole)
	damaged[len(whole)-1] ^= 1
	if err := check("damaged", cut(damaged), 1, len(want)-1); !errors.As(err, &corrupt) {
		t.Error(err)
	}
}
