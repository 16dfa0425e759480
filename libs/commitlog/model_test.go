package commitlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"pgregory.net/rapid"
)

// modelBatch is what the model keeps of a batch: its bytes as stored, and its
// records' timestamps.
type modelBatch struct {
	base  int64
	epoch int32
	data  []byte
	times []int64
}

func (b *modelBatch) next() int64 { return b.base + int64(len(b.times)) }

// machine drives a log and a plain list of batches side by side.
type machine struct {
	disk    *memfs.FS
	opts    Options
	clock   *testClock
	log     *Log
	model   []modelBatch
	durable int64
	noted   int64 // recovery point
	start   int64 // log start
	epoch   int32
	count   int
}

func newMachine(t *rapid.T) *machine {
	m := &machine{disk: memfs.New(), clock: newClock()}
	if err := m.disk.MkdirAll("/disk"); err != nil {
		t.Fatal(err)
	}
	if err := m.disk.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	m.opts = testOptions(m.disk)
	m.opts.Now = m.clock.Now
	m.opts.Config.IndexIntervalBytes = rapid.Int64Range(1, 3000).Draw(t, "interval")
	m.reopen(t, false)
	return m
}

func (m *machine) end() int64 {
	if len(m.model) == 0 {
		return m.start
	}
	return m.model[len(m.model)-1].next()
}

func (m *machine) reopen(t *rapid.T, clean bool) RecoveryReport {
	m.opts.CleanShutdown, m.opts.RecoveryPoint, m.opts.HighWatermark = clean, m.noted, m.durable
	l, report, err := Open(m.opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m.log = l
	return report
}

// Append adds a batch of any codec, with timestamps in any order.
func (m *machine) Append(t *rapid.T) {
	o := record.DefaultBuilderOptions()
	o.Compression = record.Compression(rapid.IntRange(0, 4).Draw(t, "codec"))
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	var times []int64
	size := rapid.SampledFrom([]int{0, 10, 3000, 9000}).Draw(t, "size")
	for range rapid.IntRange(1, 5).Draw(t, "records") {
		m.count++
		r := record.Record{Timestamp: rapid.Int64Range(0, 60).Draw(t, "ts"), Value: fmt.Appendf(make([]byte, size), "%d", m.count)}
		if size > 0 {
			scramble(r.Value[:size], uint32(m.count))
		}
		times = append(times, r.Timestamp)
		if ok, err := b.Append(&r); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	data, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if rapid.IntRange(0, 9).Draw(t, "new epoch") == 0 {
		m.epoch += rapid.Int32Range(1, 3).Draw(t, "epochs")
	}
	info, err := m.log.Append(cutUp(t, data), m.epoch)
	if err != nil {
		t.Fatal(err)
	}
	mb := modelBatch{base: m.end(), epoch: m.epoch, data: data, times: times}
	record.PatchBaseOffset(data, mb.base)
	record.PatchPartitionLeaderEpoch(data, m.epoch)
	if info.BaseOffset != mb.base || info.LastOffset != mb.next()-1 {
		t.Fatalf("append: %+v, want base %d", info, mb.base)
	}
	m.model = append(m.model, mb)
}

func cutUp(t *rapid.T, b []byte) [][]byte {
	if len(b) == 0 || rapid.Bool().Draw(t, "whole") {
		return [][]byte{b}
	}
	n := rapid.IntRange(0, len(b)).Draw(t, "piece")
	return [][]byte{b[:n], b[n:]}
}

func (m *machine) Sync(t *rapid.T) {
	end, err := m.log.Sync()
	if err != nil || end != m.end() {
		t.Fatalf("sync: %d, %v; the end is %d", end, err, m.end())
	}
	m.durable = end
	if rapid.Bool().Draw(t, "note the recovery point") {
		m.noted = end
	}
}

func (m *machine) Read(t *rapid.T) {
	if m.end() == 0 {
		return
	}
	offset := rapid.Int64Range(m.start, m.end()).Draw(t, "offset")
	upTo := rapid.Int64Range(0, m.end()+3).Draw(t, "up to")
	maxBytes := rapid.IntRange(0, 30_000).Draw(t, "max bytes")
	res, err := m.log.Read(offset, upTo, maxBytes, alloc)
	if err != nil {
		t.Fatalf("read at %d: %v", offset, err)
	}
	i := 0
	for i < len(m.model) && m.model[i].next() <= offset {
		i++
	}
	if i == len(m.model) || m.model[i].next() > upTo || offset >= upTo {
		if len(res.Data) != 0 || res.NextOffset != offset {
			t.Fatalf("read at %d up to %d: %d bytes, next %d", offset, upTo, len(res.Data), res.NextOffset)
		}
		return
	}
	if res.FirstBatchBase != m.model[i].base {
		t.Fatalf("read at %d: first batch %d, want %d", offset, res.FirstBatchBase, m.model[i].base)
	}
	data := res.Data
	for n := 0; len(data) > 0; n++ {
		want := m.model[i+n]
		if len(data) < len(want.data) || string(data[:len(want.data)]) != string(want.data) {
			t.Fatalf("read at %d: batch at %d has other bytes", offset, want.base)
		}
		if n > 0 && len(res.Data)-len(data)+len(want.data) > maxBytes || want.next() > upTo {
			t.Fatalf("read at %d: more than was asked for", offset)
		}
		data = data[len(want.data):]
		if len(data) == 0 && res.NextOffset != want.next() {
			t.Fatalf("read at %d: next %d, want %d", offset, res.NextOffset, want.next())
		}
	}
	if len(res.Data) == 0 {
		t.Fatalf("read at %d up to %d: nothing", offset, upTo)
	}
}

func (m *machine) Lookup(t *rapid.T) {
	ts := rapid.Int64Range(0, 62).Draw(t, "timestamp")
	upTo := rapid.Int64Range(0, m.end()).Draw(t, "up to")
	want := TimestampOffset{Offset: -1, Timestamp: record.NoTimestamp, LeaderEpoch: record.NoLeaderEpoch}
search:
	for _, b := range m.model {
		for i, have := range b.times {
			if off := b.base + int64(i); have >= ts && off < upTo && off >= m.start {
				want = TimestampOffset{true, off, have, b.epoch}
				break search
			}
		}
	}
	if got, err := m.log.OffsetForTimestamp(ts, upTo); err != nil || got != want {
		t.Fatalf("timestamp %d below %d: %+v, want %+v, %v", ts, upTo, got, want, err)
	}
}

func (m *machine) Epochs(t *rapid.T) {
	epoch := rapid.Int32Range(0, m.epoch+2).Draw(t, "epoch")
	// Epochs that ended at or below the first segment's base may be forgotten.
	none := EpochEnd{Epoch: record.NoLeaderEpoch, EndOffset: -1}
	want := none
	for _, b := range m.model {
		if b.epoch <= epoch {
			want = EpochEnd{b.epoch, b.next()}
		}
	}
	forgettable := want.EndOffset <= m.log.segs[0].base
	got, ok := m.log.EndOffsetForEpoch(epoch)
	if ok != (got != none) || got != want && !(forgettable && got == none) {
		t.Fatalf("epoch %d: %+v, want %+v", epoch, got, want)
	}
}

func (m *machine) Restart(t *rapid.T) {
	if err := m.log.Close(); err != nil {
		t.Fatal(err)
	}
	m.durable, m.noted = m.end(), m.end()
	if report := m.reopen(t, true); !report.Clean && m.end() > 0 || report.End != m.end() {
		t.Fatalf("%+v, want end %d", report, m.end())
	}
}

// DamageIndexes stops cleanly, spoils index files, and starts again.
func (m *machine) DamageIndexes(t *rapid.T) {
	if err := m.log.Close(); err != nil {
		t.Fatal(err)
	}
	m.durable, m.noted = m.end(), m.end()
	entries, err := m.disk.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if len(e.Name) < offsetDigits || e.Name[offsetDigits:] == logSuffix || !rapid.Bool().Draw(t, "spoil") {
			continue
		}
		path := joinPath(testDir, e.Name)
		b, err := vfs.ReadFile(m.disk, path, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		from := rapid.IntRange(0, len(b)).Draw(t, "from")
		to := rapid.IntRange(from, len(b)).Draw(t, "to")
		scramble(b[from:to], 99)
		b = b[:rapid.IntRange(to, len(b)).Draw(t, "length")]
		if err := vfs.WriteFileAtomic(m.disk, path, b); err != nil {
			t.Fatal(err)
		}
	}
	m.reopen(t, rapid.Bool().Draw(t, "clean"))
}

// PowerCut forgets what was not synced, or parts of it.
func (m *machine) PowerCut(t *rapid.T) {
	seed := rapid.IntRange(0, 1000).Draw(t, "seed")
	names := []string{"nothing unsynced is kept", "all is kept", "parts are kept"}
	m.disk.Crash(keepers()[rapid.SampledFrom(names).Draw(t, "kept")](seed))
	report := m.reopen(t, false)
	for len(m.model) > 0 && m.end() > report.End {
		m.model = m.model[:len(m.model)-1]
	}
	if report.End != m.end() || report.End < m.durable {
		t.Fatalf("%+v, want end %d and at least %d", report, m.end(), m.durable)
	}
	// What was kept is durable now, and the owner may learn it.
	m.durable = report.End
}

// Truncate cuts the log, or lets it begin anew when nothing whole would be left.
func (m *machine) Truncate(t *rapid.T) {
	to := rapid.Int64Range(m.start, m.end()).Draw(t, "to")
	want := m.end()
	for i := len(m.model) - 1; i >= 0 && m.model[i].next() > to; i-- {
		want = m.model[i].base
	}
	m.noted, m.durable = min(m.noted, m.start), min(m.durable, m.start)
	end, err := m.log.TruncateTo(to)
	if want < m.start {
		m.model, want = nil, m.start
	}
	if err != nil || end != want {
		t.Fatalf("truncated to %d: %d, want %d, %v", to, end, want, err)
	}
	for len(m.model) > 0 && m.model[len(m.model)-1].next() > end {
		m.model = m.model[:len(m.model)-1]
	}
	m.durable = m.log.DurableEnd()
}

// DeleteRecords moves the log's start, and lets segments go.
func (m *machine) DeleteRecords(t *rapid.T) {
	m.start = rapid.Int64Range(m.start, m.end()).Draw(t, "start")
	if err := m.log.AdvanceLogStart(m.start); err != nil {
		t.Fatal(err)
	}
	if _, err := m.log.Retain(m.clock.now, m.end()); err != nil {
		t.Fatal(err)
	}
	m.durable = max(m.durable, m.log.DurableEnd())
	m.clock.now = m.clock.now.Add(20 * time.Second)
}

func (m *machine) Check(t *rapid.T) {
	if m.log.EndOffset() != m.end() || m.log.DurableEnd() != m.durable || m.log.StartOffset() != m.start {
		t.Fatalf("end %d, durable %d; want %d and %d", m.log.EndOffset(), m.log.DurableEnd(), m.end(), m.durable)
	}
}

// The log answers as a plain list of batches does, through restarts, power cuts and
// damaged indexes.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"append": m.Append, "append more": m.Append, "append still more": m.Append,
			"sync": m.Sync, "read": m.Read, "lookup": m.Lookup, "epochs": m.Epochs,
			"restart": m.Restart, "damage indexes": m.DamageIndexes,
			"truncate": m.Truncate, "delete records": m.DeleteRecords, "power cut": m.PowerCut, "": m.Check,
		})
		if err := m.log.Abort(); err != nil {
			t.Fatal(err)
		}
	})
}
