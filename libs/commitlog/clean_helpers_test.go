package commitlog

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// kv is a record to append: "k=v", "k" for a tombstone.
type kv struct {
	key, value string
	tombstone  bool
}

// cleanOptions cleans whatever may be cleaned.
func cleanOptions(upTo int64) CleanOptions {
	o := DefaultCleanOptions(upTo)
	o.MinDirtyRatio, o.DeleteRetention, o.DedupeBufferBytes = 0, time.Hour, 64<<10
	return o
}

// cleanLog is a log with the clock that it goes by.
type cleanLog struct {
	*Log
	t     testing.TB
	clock *testClock
	opts  Options
}

func newCleanLog(t testing.TB, fsys vfs.FS) *cleanLog {
	t.Helper()
	c := &cleanLog{t: t, clock: newClock(), opts: testOptions(fsys)}
	c.opts.Now = c.clock.Now
	c.open()
	return c
}

func (c *cleanLog) open() {
	c.t.Helper()
	l, _, err := Open(c.opts)
	if err != nil {
		c.t.Fatalf("open: %v", err)
	}
	c.Log = l
	c.t.Cleanup(func() {
		if err := l.Abort(); err != nil {
			c.t.Errorf("abort: %v", err)
		}
	})
}

// reopen starts the log again, after a clean stop or as if the process had died.
func (c *cleanLog) reopen(clean bool) {
	c.t.Helper()
	c.opts.CleanShutdown, c.opts.HighWatermark = clean, c.DurableEnd()
	end := c.Close
	if !clean {
		end = c.Abort
	}
	if err := end(); err != nil {
		c.t.Fatal(err)
	}
	c.open()
}

// build encodes records with a codec and a producer.
func buildKV(t testing.TB, now int64, o record.BuilderOptions, records ...kv) []byte {
	t.Helper()
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range records {
		rec := record.Record{Timestamp: now + int64(i), Key: []byte(r.key), Value: []byte(r.value)}
		if r.tombstone {
			rec.Value = nil
		}
		rec.Headers = []record.RecordHeader{{Key: []byte("at"), Value: fmt.Appendf(nil, "%d", i)}}
		if ok, err := b.Append(&rec); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// put appends one batch of uncompressed records.
func (c *cleanLog) put(records ...kv) AppendInfo {
	c.t.Helper()
	return mustAppend(c.t, c.Log, buildKV(c.t, c.clock.now.UnixMilli(), record.DefaultBuilderOptions(), records...), max(1, c.LatestEpoch()))
}

// roll fills the active segment until it is sealed, under a key of its own, and
// syncs.
func (c *cleanLog) roll() {
	c.t.Helper()
	for n := c.Segments(); c.Segments() == n; {
		c.put(kv{key: "filler", value: string(bytes.Repeat([]byte{'f'}, 9000))})
	}
	mustSync(c.t, c.Log)
}

func (c *cleanLog) clean(o CleanOptions) CleanReport {
	c.t.Helper()
	report, err := c.Clean(o)
	if err != nil {
		c.t.Fatalf("clean: %v", err)
	}
	return report
}

// has lists "offset:key=value" of every record but the filler's.
func (c *cleanLog) has() []string {
	c.t.Helper()
	var out []string
	for _, r := range readAll(c.t, c.Log, c.StartOffset(), 1<<40) {
		switch {
		case string(r.Key) == "filler":
		case r.Value == nil:
			out = append(out, fmt.Sprintf("%d:%s", r.Offset, r.Key))
		default:
			out = append(out, fmt.Sprintf("%d:%s=%s", r.Offset, r.Key, r.Value))
		}
	}
	return out
}

// batches lists the headers of the log's batches.
func batches(t testing.TB, fsys vfs.FS) []record.Header {
	t.Helper()
	var out []record.Header
	if err := Scan(fsys, testDir, func(b BatchInfo) error {
		out = append(out, b.Header)
		return b.Err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}
