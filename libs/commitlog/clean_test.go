package commitlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/errorfs"
)

func expect(t *testing.T, c *cleanLog, want ...string) {
	t.Helper()
	if got := c.has(); !slices.Equal(got, want) {
		t.Fatalf("the log holds %v, want %v", got, want)
	}
}

// The newest record of each key stays as it is, at its offset; the active segment
// is not touched; a second cleaning finds nothing to do.
func TestCleanKeepsNewest(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	c.put(kv{key: "a", value: "1"}, kv{key: "b", value: "1"}, kv{key: "c", value: "1"})
	c.roll()
	c.put(kv{key: "a", value: "2"}, kv{key: "b", value: "2"})
	c.roll()
	c.put(kv{key: "a", value: "3"})
	end := mustSync(t, c.Log)
	limit := c.active().base
	size, err := c.Size()
	if err != nil {
		t.Fatal(err)
	}
	report := c.clean(cleanOptions(end))
	want := []string{"2:c=1", fmt.Sprintf("%d:a=2", limit/2), fmt.Sprintf("%d:b=2", limit/2+1), fmt.Sprintf("%d:a=3", end-1)}
	got := c.has()
	if len(got) != 4 || got[0] != want[0] || got[3] != want[3] || !strings.HasSuffix(got[1], ":a=2") || !strings.HasSuffix(got[2], ":b=2") {
		t.Fatalf("the log holds %v", got)
	}
	after, err := c.Size()
	if err != nil || size-after != report.BytesFreed || report.BytesFreed < 60_000 {
		t.Fatalf("the log shrank from %d to %d, %v: %+v", size, after, err, report)
	}
	if !report.Ran || report.From != 0 || report.To != limit || report.More || report.Passes != 1 || report.Keys != 4 {
		t.Fatalf("%+v", report)
	}
	again := c.clean(cleanOptions(end))
	if again.Ran || again.BytesRead != 0 || !slices.Equal(c.has(), got) {
		t.Fatalf("%+v", again)
	}
	// Nothing changes either when it is made to look again.
	before := batches(t, disk)
	if err := c.updateMarks(func(m *marks) { m.cleanedBelow = 0 }); err != nil {
		t.Fatal(err)
	}
	if r := c.clean(cleanOptions(end)); !r.Ran || r.RecordsRemoved != 0 || !slices.Equal(batches(t, disk), before) {
		t.Fatalf("a second cleaning changed something: %+v", r)
	}
	for _, clean := range []bool{true, false} {
		c.reopen(clean)
		if !slices.Equal(c.has(), got) || c.CleanedBelow() != limit {
			t.Fatalf("after a restart the log holds %v", c.has())
		}
	}
}

// case 9: a tombstone stays readable for delete.retention.ms after the first
// cleaning that covered it, however often the log is cleaned for other traffic;
// then it goes, also when there is no more traffic.
func TestTombstones(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		disk := newFS(t)
		c := newCleanLog(t, disk)
		for i := range 3 {
			c.put(kv{key: "k", value: fmt.Sprint(i)})
			c.roll()
		}
		tombstone := c.put(kv{key: "k", tombstone: true}, kv{key: "other", value: "x"}).BaseOffset
		c.roll()
		mark := fmt.Sprintf("%d:k", tombstone)
		covered := c.clock.now
		for c.clock.now.Sub(covered) < time.Hour {
			if r := c.clean(cleanOptions(mustSync(t, c.Log))); r.TombstonesBelow != 0 {
				t.Fatalf("%+v", r)
			}
			if got := c.has(); got[0] != mark {
				t.Fatalf("%v after the first cleaning the log holds %v", c.clock.now.Sub(covered), got)
			}
			c.clock.now = c.clock.now.Add(9 * time.Minute)
			if !quiet {
				c.put(kv{key: "traffic", value: fmt.Sprint(c.clock.now)})
				c.roll()
			}
			c.reopen(quiet)
		}
		r := c.clean(cleanOptions(mustSync(t, c.Log)))
		if !r.Ran || r.Tombstones != 1 || r.TombstonesBelow != tombstone+1 || r.NextHorizon != noHorizon {
			t.Fatalf("quiet %v: %+v", quiet, r)
		}
		if got := c.has(); got[0] != fmt.Sprintf("%d:other=x", tombstone+1) {
			t.Fatalf("the log holds %v", got)
		}
		c.reopen(false)
		if c.TombstonesBelow() != tombstone+1 {
			t.Fatal("it was forgotten up to where tombstones were removed")
		}
	}
}

// A tombstone that somebody who copies the log has not come to stays, however old it
// is; nor does one go if somebody began to copy who was not told that it does.
func TestTombstonesWaitForCopies(t *testing.T) {
	c := newCleanLog(t, newFS(t))
	c.put(kv{key: "k", value: "v"})
	c.roll()
	early := c.put(kv{key: "k", tombstone: true}).BaseOffset
	c.roll()
	c.put(kv{key: "l", value: "v"})
	c.roll()
	late := c.put(kv{key: "l", tombstone: true}).BaseOffset
	c.roll()
	o := cleanOptions(mustSync(t, c.Log))
	c.clean(o) // gives them their horizons
	c.clock.now = c.clock.now.Add(2 * time.Hour)
	o.Force = true
	o.KeepTombstonesFrom = func() int64 { return late }
	if r := c.clean(o); r.Tombstones != 1 || r.TombstonesBelow != early+1 || r.NextHorizon != c.clock.now.Add(heldDelay).UnixMilli() {
		t.Errorf("one is held: %+v", r)
	}
	if state, err := c.Cleanable(o); err != nil || state.Due {
		t.Errorf("it is due at once again: %+v, %v", state, err)
	}
	c.clock.now = c.clock.now.Add(heldDelay)
	asked := 0
	o.KeepTombstonesFrom = func() int64 {
		if asked++; c.TombstonesBelow() > late {
			return 0
		}
		return late + 1
	}
	if r := c.clean(o); !r.More || r.Tombstones != 0 || asked < 2 {
		t.Errorf("somebody began to copy: %+v, asked %d times", r, asked)
	}
	if got := c.has(); !slices.Contains(got, fmt.Sprintf("%d:l", late)) {
		t.Errorf("the log holds %v", got)
	}
	o.KeepTombstonesFrom = nil
	if r := c.clean(o); r.Tombstones != 1 || r.NextHorizon != noHorizon {
		t.Errorf("nobody copies: %+v", r)
	}
}

// case 10: an idempotent producer's last batch is superseded as a whole, and its
// header stays, so that the sequence is known; control batches stay.
func TestCleanKeepsProducerState(t *testing.T) {
	for codec := record.CompressionNone; codec <= record.CompressionZstd; codec++ {
		disk := newFS(t)
		c := newCleanLog(t, disk)
		o := record.DefaultBuilderOptions()
		o.Compression, o.ProducerID, o.ProducerEpoch = codec, 7, 2
		value := strings.Repeat("v", 200)
		for i := range 3 {
			o.BaseSequence = int32(i) * 2
			mustAppend(t, c.Log, buildKV(t, 1, o, kv{key: "a", value: value}, kv{key: "b", value: value}), 1)
		}
		ctl := record.DefaultBuilderOptions()
		ctl.Control, ctl.ProducerID, ctl.ProducerEpoch = true, 9, 0
		mustAppend(t, c.Log, buildKV(t, 1, ctl, kv{key: "marker", value: "m"}), 1)
		c.put(kv{key: "a", value: "new"}, kv{key: "b", value: "new"}, kv{key: "marker", value: "data"})
		c.roll()
		check := func() {
			t.Helper()
			var last *record.Header
			controls := 0
			for _, h := range batches(t, disk) {
				if h.ProducerID == 7 {
					if last != nil {
						t.Fatal("more than the producer's last batch is left")
					}
					last = &h
				}
				if h.Attributes.Control() {
					controls++
				}
			}
			if last == nil || last.NumRecords != 0 || last.LastSequence() != 5 || last.ProducerEpoch != 2 || last.BaseOffset != 4 || last.NextOffset() != 6 || controls != 1 {
				t.Fatalf("%s: %+v, %d control batches", codec, last, controls)
			}
		}
		if r := c.clean(cleanOptions(mustSync(t, c.Log))); r.EmptyBatches != 1 {
			t.Fatalf("%s: %+v", codec, r)
		}
		check()
		// It survives further cleanings, until the producer goes on.
		c.put(kv{key: "x", value: "y"})
		c.roll()
		c.clean(cleanOptions(mustSync(t, c.Log)))
		check()
		c.reopen(false)
		check()
		o.BaseSequence = 6
		mustAppend(t, c.Log, buildKV(t, 1, o, kv{key: "z", value: value}), 1)
		c.roll()
		if r := c.clean(cleanOptions(mustSync(t, c.Log))); r.EmptyBatches != 0 {
			t.Fatalf("%s: %+v", codec, r)
		}
	}
}

// case 11: a read that starts in a batch without records, or in a gap, moves on
// behind it.
func TestReadThroughEmptyBatchesAndGaps(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence = 7, 0, 0
	c.put(kv{key: "a", value: "1"}, kv{key: "a", value: "2"})
	mustAppend(t, c.Log, buildKV(t, 1, o, kv{key: "a", value: "3"}, kv{key: "a", value: "4"}), 1)
	c.put(kv{key: "a", value: "5"})
	c.roll()
	end := mustSync(t, c.Log)
	c.clean(cleanOptions(end))
	for offset, want := range map[int64]int64{0: 4, 1: 4, 2: 4, 3: 4, 4: 5} {
		res, err := c.Read(offset, end, 1, alloc)
		if err != nil || res.NextOffset != want {
			t.Fatalf("read at %d goes on at %d, want %d, %v", offset, res.NextOffset, want, err)
		}
		if h, err := record.ParseHeader(res.Data); err != nil || offset < 4 && (h.BaseOffset != 2 || h.NumRecords != 0) {
			t.Fatalf("read at %d: %+v, %v", offset, h, err)
		}
	}
	expect(t, c, "4:a=5")
}

// A map that holds few keys makes for many passes and the same result.
func TestCleanInManyPasses(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	var want []string
	for round := range 3 {
		for i := range 100 {
			info := c.put(kv{key: fmt.Sprintf("k%03d", i), value: fmt.Sprint(round)})
			if round == 2 {
				want = append(want, fmt.Sprintf("%d:k%03d=2", info.BaseOffset, i))
			}
		}
		c.roll()
	}
	o := cleanOptions(mustSync(t, c.Log))
	o.DedupeBufferBytes = MinDedupeBufferBytes
	o.MaxPasses = 1
	first := c.clean(o)
	if !first.More || first.Passes != 1 || first.MapBytes > MinDedupeBufferBytes {
		t.Fatalf("%+v", first)
	}
	o.MaxPasses = 0
	r := c.clean(o)
	if r.More || r.Passes < 5 || r.From != first.To || r.To != c.active().base || r.MapBytes > MinDedupeBufferBytes {
		t.Fatalf("%+v", r)
	}
	expect(t, c, want...)
}

// When it is due: by the share of dirty bytes, by the age of the oldest record,
// and not before the youngest record is old enough.
func TestCleanIsDue(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	start := c.clock.now
	for range 4 {
		c.put(kv{key: "a", value: "1"})
		c.roll()
		c.clock.now = c.clock.now.Add(time.Minute)
	}
	end := mustSync(t, c.Log)
	o := cleanOptions(end)
	o.MinLag = 150 * time.Second // of the records at 0, 1, 2 and 3 minutes, it is 4 now
	state, err := c.Cleanable(o)
	if err != nil || state.Limit != c.segs[2].base || !state.Due || state.Ratio != 1 {
		t.Fatalf("%+v, %v", state, err)
	}
	if r := c.clean(o); r.To != state.Limit {
		t.Fatalf("%+v", r)
	}
	o.MinLag, o.MinDirtyRatio = 0, 0.99
	state, err = c.Cleanable(o)
	if err != nil || state.Due || state.DirtyBytes == 0 || state.CleanBytes == 0 || state.Ratio > 0.99 {
		t.Fatalf("%+v, %v", state, err)
	}
	if r := c.clean(o); r.Ran {
		t.Fatalf("%+v", r)
	}
	o.MaxLag = time.Minute
	if r := c.clean(o); !r.Ran || !strings.Contains(r.Why, "max.compaction.lag.ms") {
		t.Fatalf("%+v", r)
	}
	if c.clock.now.Sub(start) != 4*time.Minute {
		t.Fatal("the test's clock was moved otherwise")
	}
}

// Nothing at or above the last stable offset is touched, nor is what it needs.
func TestCleanStopsAtLastStableOffset(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	c.put(kv{key: "a", value: "1"})
	c.roll()
	second := c.put(kv{key: "a", value: "2"}).BaseOffset
	c.roll()
	mustSync(t, c.Log)
	for _, upTo := range []int64{0, c.segs[1].base - 1} {
		if r := c.clean(cleanOptions(upTo)); r.Ran {
			t.Fatalf("up to %d: %+v", upTo, r)
		}
	}
	// The first segment is stable, the second only in part: its record must not
	// supersede what is.
	r := c.clean(cleanOptions(second + 1))
	if !r.Ran || r.To != c.segs[1].base {
		t.Fatalf("%+v", r)
	}
	if got := c.has(); len(got) != 2 {
		t.Fatalf("the log holds %v", got)
	}
}

// Records without a key go, as in Kafka, and are counted.
func TestCleanDropsNullKeys(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	b, err := record.NewBuilder(record.DefaultBuilderOptions())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range [][]byte{nil, {}, nil} {
		if ok, err := b.Append(&record.Record{Key: key, Value: []byte("v")}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, c.Log, out, 1)
	c.roll()
	if r := c.clean(cleanOptions(mustSync(t, c.Log))); r.NullKeys != 2 {
		t.Fatalf("%+v", r)
	}
	expect(t, c, "1:=v")
}

// A damaged batch ends the cleaning with its place, and nothing is changed there.
func TestCleanMeetsDamage(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	c.put(kv{key: "a", value: "1"})
	info := c.put(kv{key: "a", value: "2"})
	c.roll()
	end := mustSync(t, c.Log)
	path := segmentPath(testDir, 0, logSuffix)
	c.opts.RecoveryPoint, c.opts.HighWatermark = end, end
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	overwrite(t, disk, path, func(b []byte) []byte { b[info.Position+int64(info.Size)-1] ^= 1; return b })
	c.opts.CleanShutdown = true
	c.open()
	_, err := c.Clean(cleanOptions(end))
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) || corrupt.Path != path || corrupt.Position != info.Position {
		t.Fatalf("%v", err)
	}
	if c.Segments() != 2 || c.Err() != nil {
		t.Fatalf("%d segments, %v", c.Segments(), c.Err())
	}
}

// A cleaning that is stopped, or finds no space, leaves the log as it was and the
// next one does the work.
func TestCleanIsInterrupted(t *testing.T) {
	disk := newFS(t)
	faulty := errorfs.Wrap(disk)
	c := newCleanLog(t, faulty)
	for range 40 {
		c.put(kv{key: "a", value: strings.Repeat("x", 30_000)})
	}
	c.roll()
	end := mustSync(t, c.Log)
	want := c.has()
	enough := errors.New("enough")
	o := cleanOptions(end)
	o.Pace = func(n int) error {
		if n < cleanChunk {
			t.Errorf("called after %d bytes", n)
		}
		return enough
	}
	if _, err := c.Clean(o); !errors.Is(err, enough) {
		t.Fatalf("%v", err)
	}
	expect(t, c, want...)
	o.Pace = nil
	faulty.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite}, Path: "*.log.cleaned", Err: syscall.ENOSPC, Times: 1})
	_, err := c.Clean(o)
	var full *NoSpaceError
	if !errors.As(err, &full) || c.Err() != nil {
		t.Fatalf("%v, %v", err, c.Err())
	}
	if got := c.has(); got[len(got)-1] != want[len(want)-1] {
		t.Fatalf("the newest record is gone")
	}
	c.clean(o)
	expect(t, c, want[len(want)-1])
	// Close ends one that runs.
	done := make(chan error)
	o.Force = true
	o.Pace = func(int) error { return nil }
	if err := c.updateMarks(func(m *marks) { m.cleanedBelow = 0 }); err != nil {
		t.Fatal(err)
	}
	go func() {
		var err error
		for err == nil {
			_, err = c.Clean(o)
		}
		done <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Fatalf("%v", err)
	}
}

// case 12: DeleteRecords moved the log's start into the active segment of a
// compacted topic, beyond everything that was cleaned; the cleaner takes it.
func TestCleanAfterDeleteRecords(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	for i := range 3 {
		c.put(kv{key: "a", value: fmt.Sprint(i)})
		c.roll()
	}
	c.put(kv{key: "b", value: "1"})
	last := c.put(kv{key: "a", value: "last"}).BaseOffset
	mustSync(t, c.Log)
	if err := c.AdvanceLogStart(last); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if r := c.clean(cleanOptions(c.DurableEnd())); r.Ran || r.From != last {
			t.Fatalf("%+v", r)
		}
		expect(t, c, fmt.Sprintf("%d:a=last", last))
		c.reopen(false)
	}
	// It goes on from there, with the start in the middle of a sealed segment.
	c.roll()
	c.put(kv{key: "a", value: "newer"})
	c.roll()
	end := mustSync(t, c.Log)
	if r := c.clean(cleanOptions(end)); !r.Ran || r.From != last || r.To != c.active().base {
		t.Fatalf("%+v", r)
	}
	if got := c.has(); len(got) != 1 || !strings.HasSuffix(got[0], ":a=newer") {
		t.Fatalf("the log holds %v", got)
	}
	c.reopen(true)
	if got := c.has(); len(got) != 1 || c.StartOffset() != last {
		t.Fatalf("the log begins at %d and holds %v", c.StartOffset(), got)
	}
}

func TestCleanOptionsAreChecked(t *testing.T) {
	c := newCleanLog(t, newFS(t))
	for name, change := range map[string]func(*CleanOptions){
		"must not be negative":      func(o *CleanOptions) { o.UpTo = -1 },
		"min.cleanable.dirty.ratio": func(o *CleanOptions) { o.MinDirtyRatio = 1.1 },
		"delete.retention.ms":       func(o *CleanOptions) { o.DeleteRetention = -1 },
		"the cleaner's buffer":      func(o *CleanOptions) { o.DedupeBufferBytes = 10 },
	} {
		o := DefaultCleanOptions(0)
		change(&o)
		_, err := c.Clean(o)
		if _, err2 := c.Cleanable(o); err == nil || err2 == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, err, err2)
		}
	}
	// An empty log has nothing to clean, also when it is made to.
	o := DefaultCleanOptions(10)
	o.Force = true
	if r := c.clean(o); r.Ran {
		t.Errorf("%+v", r)
	}
}

// Segments of which nothing is left are read through, joined with their neighbours
// later, and survive restarts.
func TestCleanLeavesEmptySegments(t *testing.T) {
	disk := newFS(t)
	c := newCleanLog(t, disk)
	for i := range 5 {
		for n := c.Segments(); c.Segments() == n; {
			c.put(kv{key: "a", value: fmt.Sprint(i) + strings.Repeat("x", 9000)})
		}
	}
	end := mustSync(t, c.Log)
	c.clean(cleanOptions(end))
	segments := c.Segments()
	want := c.has()
	if len(want) != 1+int(end-c.active().base) || segments != 6 {
		t.Fatalf("%d records in %d segments", len(want), segments)
	}
	for _, clean := range []bool{true, false} {
		c.reopen(clean)
		expect(t, c, want...)
		if r := verify(t, disk, testDir, VerifyOptions{}); !r.OK() {
			t.Fatalf("%+v", r)
		}
	}
	c.roll()
	end = mustSync(t, c.Log)
	c.clean(cleanOptions(end))
	if c.Segments() > 3 {
		t.Fatalf("%d segments are left", c.Segments())
	}
	expect(t, c, want[len(want)-1])
}
