package commitlog

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

const testDir = "/disk/orders-0"

var testID = [16]byte{1, 2, 3}

// testClock is a clock that a test moves.
type testClock struct{ now time.Time }

func newClock() *testClock { return &testClock{now: time.UnixMilli(1_700_000_000_000)} }

func testOptions(fsys vfs.FS) Options {
	return Options{
		FS: fsys, Dir: testDir, Topic: "orders", TopicID: testID, Now: newClock().Now,
		Config: Config{SegmentBytes: MinSegmentBytes, IndexIntervalBytes: 512},
	}
}

func (c *testClock) Now() time.Time { return c.now }

func newFS(t testing.TB) *memfs.FS {
	t.Helper()
	fsys := memfs.New()
	if err := fsys.MkdirAll("/disk"); err != nil {
		t.Fatal(err)
	}
	if err := fsys.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	return fsys
}

func mustOpen(t testing.TB, o Options) (*Log, RecoveryReport) {
	t.Helper()
	l, report, err := Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Abort(); err != nil {
			t.Errorf("abort: %v", err)
		}
	})
	return l, report
}

// batch makes a batch of n records whose values carry tag, with timestamps ts,
// ts+1, ….
func batch(t testing.TB, n int, tag string, ts int64) []byte {
	t.Helper()
	o := record.DefaultBuilderOptions()
	o.MaxBytes = 8 << 20
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r := record.Record{Timestamp: ts + int64(i), Key: []byte("k"), Value: fmt.Appendf(nil, "%s-%d", tag, i)}
		if ok, err := b.Append(&r); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustAppend(t testing.TB, l *Log, b []byte, epoch int32) AppendInfo {
	t.Helper()
	info, err := l.Append([][]byte{b}, epoch)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return info
}

func mustSync(t testing.TB, l *Log) int64 {
	t.Helper()
	end, err := l.Sync()
	if err != nil {
		t.Fatalf("sync: %v", err)
	}
	return end
}

func alloc(n int) []byte { return make([]byte, n) }

// readAll reads every batch below upTo in small reads and returns the records.
func readAll(t testing.TB, l *Log, from, upTo int64) []record.Record {
	t.Helper()
	var out []record.Record
	for from < upTo {
		res, err := l.Read(from, upTo, 700, alloc)
		if err != nil {
			t.Fatalf("read at %d: %v", from, err)
		}
		if len(res.Data) == 0 {
			break
		}
		data := res.Data
		for len(data) > 0 {
			b, rest, err := record.NextBatch(data)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := record.Validate([][]byte{b}, record.ValidateOptions{}); err != nil {
				t.Fatal(err)
			}
			records, err := record.Decode(b, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				if r.Offset >= from {
					out = append(out, r)
				}
			}
			data = rest
		}
		if res.NextOffset <= from {
			t.Fatalf("read at %d does not move on", from)
		}
		from = res.NextOffset
	}
	return out
}

// overwrite changes a file behind the log's back, durably.
func overwrite(t testing.TB, fsys vfs.FS, path string, change func(b []byte) []byte) {
	t.Helper()
	b, err := vfs.ReadFile(fsys, path, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(fsys, path, change(bytes.Clone(b))); err != nil {
		t.Fatal(err)
	}
}

// values lists the values of records.
func values(records []record.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r.Value)
	}
	return out
}
