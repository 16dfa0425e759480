package commitlog

import (
	"slices"
	"testing"

	"github.com/leat-io/leat/libs/record"
)

// A follower whose last records are of an epoch that its leader never heard of must give
// them up, or ask for ever. Compaction may take every record of an epoch away; a copy made
// after that has to learn of the epoch all the same.
func TestCleanKeepsWhereEpochsBegin(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	in := func(epoch int32, records ...kv) {
		t.Helper()
		mustAppend(t, c.Log, buildKV(t, c.clock.now.UnixMilli(), record.DefaultBuilderOptions(), records...), epoch)
	}
	in(1, kv{key: "a", value: "1"})
	in(2, kv{key: "a", value: "2"}, kv{key: "b", value: "2"})
	in(2, kv{key: "a", value: "3"})
	in(4, kv{key: "a", value: "4"}, kv{key: "b", value: "4"})
	c.roll()
	for range 3 {
		in(4, kv{key: "a", value: "5"}, kv{key: "b", value: "5"})
		c.roll()
		end := mustSync(t, c.Log)
		c.clean(cleanOptions(end))
		c.reopen(false)
	}
	want := []EpochStart{{1, 0}, {2, 1}, {4, 4}}
	if got := c.Epochs(); !slices.Equal(got, want) {
		t.Fatalf("the epochs are %v, want %v", got, want)
	}
	var ofTwo []record.Header
	for _, h := range batches(t, disk) {
		if h.PartitionLeaderEpoch == 2 {
			ofTwo = append(ofTwo, h)
		}
	}
	if len(ofTwo) != 1 || ofTwo[0].BaseOffset != 1 || ofTwo[0].NumRecords != 0 {
		t.Errorf("of epoch 2, whose records are all superseded, %+v is left; want the header of its first batch", ofTwo)
	}
	fresh, _, err := Open(testOptions(newFS(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Abort()
	for at := c.StartOffset(); at < c.EndOffset(); {
		res, err := c.Read(at, c.EndOffset(), 1<<20, alloc)
		if err != nil {
			t.Fatal(err)
		}
		for data := res.Data; len(data) > 0; {
			batch, rest, err := record.NextBatch(data)
			if err == nil {
				_, err = record.Validate([][]byte{batch}, record.ValidateOptions{})
			}
			if err == nil {
				_, err = fresh.AppendAt([][]byte{batch})
			}
			if err != nil {
				t.Fatal(err)
			}
			data = rest
		}
		at = res.NextOffset
	}
	// Where the oldest epoch's records are gone, a copy begins with the next one.
	got := fresh.Epochs()
	if i := slices.Index(got, want[1]); i < 0 || !slices.Equal(got[i:], want[1:]) {
		t.Errorf("a copy knows the epochs %v, want it to end in %v", got, want[1:])
	}
}
