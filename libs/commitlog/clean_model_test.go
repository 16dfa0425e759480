package commitlog

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"pgregory.net/rapid"
)

// cleanRecord is what the model keeps of a record.
type cleanRecord struct {
	offset   int64
	key      string
	null     bool // of the key
	value    string
	gone     bool // a tombstone
	control  bool
	next     int64 // end of its batch
	covered  int64 // ms; when the first cleaning covered its whole batch, 0 before
	rendered string
}

// cleanMachine drives a log that is compacted and a plain list of records.
type cleanMachine struct {
	disk    *memfs.FS
	clock   *testClock
	opts    Options
	log     *Log
	records []cleanRecord
	end     int64
	synced  int64
	cleaned int64 // up to where the log has been cleaned
	seq     map[int64]int32
	last    map[int64]int64 // producer → last offset of its last batch
	count   int
	noise   []byte // that values are cut from
}

const cleanRetention = 1000 // ms

func newCleanMachine(t *rapid.T) *cleanMachine {
	m := &cleanMachine{disk: memfs.New(), clock: newClock(), seq: map[int64]int32{}, last: map[int64]int64{}}
	if err := m.disk.MkdirAll("/disk"); err != nil {
		t.Fatal(err)
	}
	if err := m.disk.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	m.noise = make([]byte, 32<<10)
	scramble(m.noise, 1)
	m.opts = testOptions(m.disk)
	m.opts.Now = m.clock.Now
	m.opts.Config.IndexIntervalBytes = rapid.Int64Range(1, 3000).Draw(t, "interval")
	m.open(t)
	return m
}

func (m *cleanMachine) open(t *rapid.T) {
	m.opts.HighWatermark = m.synced
	l, _, err := Open(m.opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m.log = l
}

func (m *cleanMachine) Append(t *rapid.T) {
	o := record.DefaultBuilderOptions()
	o.Compression = record.Compression(rapid.IntRange(0, 4).Draw(t, "codec"))
	n := rapid.IntRange(1, 6).Draw(t, "records")
	if pid := rapid.Int64Range(-3, 2).Draw(t, "producer"); pid >= 0 {
		o.ProducerID, o.ProducerEpoch, o.BaseSequence = pid, 0, m.seq[pid]
		m.seq[pid] += int32(n)
		m.last[pid] = m.end + int64(n) - 1
	} else if rapid.IntRange(0, 19).Draw(t, "control") == 0 {
		o.Control, n = true, 1
	}
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	size := rapid.SampledFrom([]int{0, 10, 3000, 16_000}).Draw(t, "size")
	for i := range n {
		m.count++
		r := cleanRecord{offset: m.end + int64(i), next: m.end + int64(n), control: o.Control, key: fmt.Sprint(rapid.IntRange(0, 12).Draw(t, "key"))}
		rec := record.Record{Timestamp: m.clock.now.UnixMilli() + rapid.Int64Range(-5, 5).Draw(t, "ts"), Key: []byte(r.key), Value: fmt.Appendf(nil, "%d", m.count)}
		at := m.count * 97 % (len(m.noise) - size)
		rec.Value = append(rec.Value, m.noise[at:at+size]...)
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			rec.Key, r.null = nil, true
		case 1, 2:
			rec.Value, r.gone = nil, true
		case 3:
			rec.Headers = []record.RecordHeader{{Key: []byte("h"), Value: nil}, {Key: []byte("h"), Value: []byte{}}}
		}
		r.value = string(rec.Value)
		if ok, err := b.Append(&rec); !ok || err != nil {
			t.Fatal(ok, err)
		}
		r.rendered = render(r.offset, &rec)
		m.records = append(m.records, r)
	}
	data, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := m.log.Append([][]byte{data}, 1); err != nil || info.BaseOffset != m.end {
		t.Fatalf("append: %+v, %v, want %d", info, err, m.end)
	}
	m.end += int64(n)
}

func render(offset int64, r *record.Record) string {
	return fmt.Sprintf("%d %d %v %q %v %q %#v", offset, r.Timestamp, r.Key == nil, r.Key, r.Value == nil, r.Value, r.Headers)
}

func (m *cleanMachine) Sync(t *rapid.T) {
	end, err := m.log.Sync()
	if err != nil {
		t.Fatal(err)
	}
	m.synced = end
}

func (m *cleanMachine) Wait(t *rapid.T) {
	m.clock.now = m.clock.now.Add(time.Duration(rapid.IntRange(1, 600).Draw(t, "ms")) * time.Millisecond)
}

func (m *cleanMachine) Clean(t *rapid.T) {
	if rapid.Bool().Draw(t, "sync first") {
		m.Sync(t)
	}
	o := DefaultCleanOptions(rapid.Int64Range(0, m.synced).Draw(t, "up to"))
	if rapid.Bool().Draw(t, "to the end") {
		o.UpTo = m.synced
	}
	o.MinDirtyRatio, o.DeleteRetention = rapid.SampledFrom([]float64{0, 0, 0.5}).Draw(t, "ratio"), cleanRetention*time.Millisecond
	o.DedupeBufferBytes = rapid.Int64Range(MinDedupeBufferBytes, MinDedupeBufferBytes*2).Draw(t, "buffer")
	if rapid.Bool().Draw(t, "tiny buffer") {
		o.DedupeBufferBytes = MinDedupeBufferBytes
	}
	o.MaxPasses = rapid.IntRange(0, 2).Draw(t, "passes")
	now := m.clock.now.UnixMilli()
	report, err := m.log.Clean(o)
	if err != nil {
		t.Fatalf("clean: %v", err)
	}
	if !report.Ran {
		return
	}
	if report.From > report.To || report.To > o.UpTo || report.To < m.cleaned || report.MapBytes > o.DedupeBufferBytes {
		t.Fatalf("%+v", report)
	}
	m.cleaned = report.To
	m.remove(t, now, o.UpTo)
}

// remove takes out of the model what the log may have taken out, and looks that it
// took out no more and, where it had to, no less.
func (m *cleanMachine) remove(t *rapid.T, now, upTo int64) {
	newest := map[string]int64{}
	for _, r := range m.records {
		if r.offset < m.cleaned && !r.control && !r.null {
			newest[r.key] = r.offset
		}
	}
	have := m.read(t, 0)
	kept := m.records[:0]
	for _, r := range m.records {
		_, there := have[r.offset]
		must, may := true, true
		switch {
		case r.control || r.offset >= m.cleaned:
		case r.null, newest[r.key] > r.offset:
			must, may = false, false
		case r.gone:
			expired := r.covered > 0 && now >= r.covered+cleanRetention
			must = !expired
			// A log that was cleaned farther before than it may be now is left alone.
			may = !expired || r.offset >= upTo || m.cleaned > upTo
			if r.covered == 0 && r.next <= m.cleaned {
				r.covered = now
			}
		}
		if there && !may || !there && must {
			t.Fatalf("cleaned up to %d at %d: %+v is there: %v", m.cleaned, now, r, there)
		}
		if there {
			kept = append(kept, r)
		}
	}
	m.records = kept
}

// read returns the rendered records from an offset on, and looks that they are in
// order.
func (m *cleanMachine) read(t *rapid.T, from int64) map[int64]string {
	out := map[int64]string{}
	for _, r := range readAllRapid(t, m.log, from) {
		out[r.Offset] = render(r.Offset, &r)
	}
	return out
}

func readAllRapid(t *rapid.T, l *Log, from int64) []record.Record {
	var out []record.Record
	last := from - 1
	for {
		res, err := l.Read(from, math.MaxInt64, 5000, alloc)
		if err != nil {
			t.Fatalf("read at %d: %v", from, err)
		}
		for data := res.Data; len(data) > 0; {
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
				if r.Offset < from {
					continue
				}
				if r.Offset <= last {
					t.Fatalf("offset %d after %d", r.Offset, last)
				}
				last, out = r.Offset, append(out, r)
			}
			data = rest
		}
		if res.NextOffset <= from {
			if from != l.EndOffset() {
				t.Fatalf("reading stands still at %d of %d", from, l.EndOffset())
			}
			return out
		}
		from = res.NextOffset
	}
}

// Check compares everything from a random offset on, and looks for each producer's
// last batch.
func (m *cleanMachine) Check(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "skip") > 0 {
		return
	}
	from := rapid.Int64Range(0, m.end).Draw(t, "from")
	have := m.read(t, from)
	for _, r := range m.records {
		if r.offset < from {
			continue
		}
		if have[r.offset] != r.rendered {
			t.Fatalf("offset %d is %.200s, want %.200s", r.offset, have[r.offset], r.rendered)
		}
		delete(have, r.offset)
	}
	if len(have) > 0 {
		t.Fatalf("from %d there are too many: %.500v", from, have)
	}
	last := map[int64]record.Header{}
	if err := Scan(m.disk, testDir, func(b BatchInfo) error {
		if b.Err == nil && b.Header.ProducerID >= 0 {
			last[b.Header.ProducerID] = b.Header
		}
		return b.Err
	}); err != nil {
		t.Fatal(err)
	}
	for pid, offset := range m.last {
		h := last[pid]
		if h.LastOffset() != offset || h.LastSequence() != m.seq[pid]-1 {
			t.Fatalf("the last batch of producer %d ends at %d with sequence %d, want %d and %d", pid, h.LastOffset(), h.LastSequence(), offset, m.seq[pid]-1)
		}
	}
}

// Lookup wants the first survivor that is young enough.
func (m *cleanMachine) Lookup(t *rapid.T) {
	ts := m.clock.now.UnixMilli() - rapid.Int64Range(-10, 2000).Draw(t, "ago")
	got, err := m.log.OffsetForTimestamp(ts, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range readAllRapid(t, m.log, 0) {
		if r.Timestamp >= ts {
			if got.Offset != r.Offset || got.Timestamp != r.Timestamp {
				t.Fatalf("timestamp %d: %+v, want offset %d", ts, got, r.Offset)
			}
			return
		}
	}
	if got.Found {
		t.Fatalf("timestamp %d: %+v, want none", ts, got)
	}
}

func (m *cleanMachine) Restart(t *rapid.T) {
	m.opts.CleanShutdown = rapid.Bool().Draw(t, "clean")
	m.Sync(t)
	end := m.log.Close
	if !m.opts.CleanShutdown {
		end = m.log.Abort
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	m.open(t)
}

// Through any mix of appends, cleanings and restarts: of each key the newest record
// below the cleaned offset stays, as it was; older ones go; order and offsets stay;
// tombstones stay for their time and then go; reads move on through gaps.
func TestCleanAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newCleanMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"append": m.Append, "append more": m.Append, "append still more": m.Append, "append yet more": m.Append,
			"clean": m.Clean, "clean more": m.Clean, "check": m.Check, "sync": m.Sync, "wait": m.Wait, "lookup": m.Lookup,
			"restart": m.Restart, "": m.Check,
		})
		if err := m.log.Abort(); err != nil {
			t.Fatal(err)
		}
	})
}
