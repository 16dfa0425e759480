package commitlog

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"pgregory.net/rapid"
)

// produced makes a batch of n records of a producer.
func produced(t testing.TB, id int64, epoch int16, seq int32, n int, transactional bool, size int) []byte {
	t.Helper()
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional = id, epoch, seq, transactional
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r := record.Record{Timestamp: 1000 + int64(i), Value: make([]byte, size)}
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

func header(t testing.TB, b []byte) *record.Header {
	t.Helper()
	h, err := record.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	return &h
}

// cases 22 and 23: what a producer may send next, and what is known again.
func TestCheckProducer(t *testing.T) {
	disk := newFS(t)
	l, _ := mustOpen(t, testOptions(disk))
	check := func(id int64, epoch int16, seq int32, n int, want ProducerVerdict, base int64) {
		t.Helper()
		if got := l.CheckProducer(header(t, produced(t, id, epoch, seq, n, false, 1))); got.Verdict != want || got.BaseOffset != base {
			t.Fatalf("producer %d, epoch %d, sequence %d: %+v, want %v at %d", id, epoch, seq, got, want, base)
		}
	}
	add := func(id int64, epoch int16, seq int32, n int) int64 {
		t.Helper()
		check(id, epoch, seq, n, ProducerOK, -1)
		return mustAppend(t, l, produced(t, id, epoch, seq, n, false, 1), 0).BaseOffset
	}
	// case 22: 17 comes before 0 to 16 were stored.
	check(7, 0, 17, 5, ProducerUnknown, -1)
	add(7, 0, 0, 17)
	check(7, 0, 22, 1, ProducerOutOfOrder, -1)
	add(7, 0, 17, 5)
	// case 23
	check(7, 0, 0, 17, ProducerDuplicate, 0)
	check(7, 0, 17, 5, ProducerDuplicate, 17)
	check(7, 0, 17, 4, ProducerOutOfOrder, -1)
	for i := range int32(4) {
		add(7, 0, 22+i, 1)
	}
	check(7, 0, 17, 5, ProducerDuplicate, 17)
	check(7, 0, 0, 17, ProducerOutOfOrder, -1) // the sixth from the end
	// A higher epoch begins at 0, and fences the lower one.
	check(7, 1, 26, 1, ProducerOutOfOrder, -1)
	add(7, 1, 0, 2)
	check(7, 0, 26, 1, ProducerFenced, -1)
	check(7, 1, 0, 2, ProducerDuplicate, 26)
	// Sequences wrap.
	first := add(8, 0, 0, 1)
	l.producers.byID[8].latest().lastSeq = math.MaxInt32 - 2
	last := mustAppend(t, l, produced(t, 8, 0, math.MaxInt32-1, 4, false, 1), 0)
	check(8, 0, 2, 1, ProducerOK, -1)
	check(8, 0, math.MaxInt32-1, 4, ProducerDuplicate, last.BaseOffset)
	if first >= last.BaseOffset {
		t.Fatal(first, last)
	}
	if got := l.CheckProducer(header(t, batch(t, 1, "x", 1))); got.Verdict != ProducerOK {
		t.Fatalf("%+v", got)
	}
}

func TestProducerExpiry(t *testing.T) {
	disk := newFS(t)
	clock := newClock()
	o := testOptions(disk)
	o.Now = clock.Now
	o.Config.ProducerExpiration = time.Hour
	l, _ := mustOpen(t, o)
	mustAppend(t, l, produced(t, 1, 0, 0, 1, false, 1), 0)
	mustAppend(t, l, produced(t, 2, 0, 0, 1, true, 1), 0)
	clock.now = clock.now.Add(40 * time.Minute)
	mustAppend(t, l, produced(t, 3, 0, 0, 1, false, 1), 0)
	if n := l.ExpireProducers(clock.now.Add(30 * time.Minute)); n != 1 || l.Producers() != 2 {
		t.Fatalf("%d expired, %d are left", n, l.Producers())
	}
	// One with an open transaction stays.
	if n := l.ExpireProducers(clock.now.Add(24 * time.Hour)); n != 1 || l.Producers() != 1 {
		t.Fatalf("%d expired, %d are left", n, l.Producers())
	}
	if first, n := l.OpenTransactions(); first != 1 || n != 1 {
		t.Fatal(first, n)
	}
}

func TestFenceOutlivesEverything(t *testing.T) {
	disk := newFS(t)
	o := testOptions(disk)
	l, _ := mustOpen(t, o)
	put := func(epoch, attempt int64) {
		t.Helper()
		b, err := record.BuildFence(record.Fence{ShardEpoch: epoch, Attempt: attempt}, 1)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, b, 0)
	}
	put(3, 1)
	put(3, 2)
	put(2, 9)
	want := record.Fence{ShardEpoch: 3, Attempt: 2}
	if got := l.Fence(); got != want {
		t.Fatalf("%+v", got)
	}
	mustSync(t, l)
	disk.Crash(nil)
	l, _ = mustOpen(t, o)
	if got := l.Fence(); got != want {
		t.Fatalf("after a crash: %+v", got)
	}
	for l.Segments() < 3 {
		mustAppend(t, l, batch(t, 1, strings.Repeat("x", 9000), 1), 0)
	}
	end := mustSync(t, l)
	if err := l.AdvanceLogStart(end); err != nil {
		t.Fatal(err)
	}
	mustRetain(t, l, o.Now().Add(100*time.Hour), end)
	disk.Crash(nil)
	l, _ = mustOpen(t, o)
	if got := l.Fence(); got != want || l.StartOffset() != end {
		t.Fatalf("after retention: %+v", got)
	}
	if _, err := l.TruncateTo(end); err != nil {
		t.Fatal(err)
	}
	if err := l.ResetTo(end + 5); err != nil || l.Fence() != (record.Fence{}) {
		t.Fatalf("after a reset: %+v, %v", l.Fence(), err)
	}
}

// A batch whose bits flipped is damage, where nothing but the batch tells of its fence or
// its producer. Were it believed, no coordinator's fence might ever reach that of a shard,
// which would be lost for good, and a producer's retry might pass for new.
func TestNoFlippedBitIsReplayed(t *testing.T) {
	fence, err := record.BuildFence(record.Fence{ShardEpoch: 3, Attempt: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("fence", func(t *testing.T) { noFlippedBitIsReplayed(t, fence) })
	t.Run("producer", func(t *testing.T) { noFlippedBitIsReplayed(t, produced(t, 7, 0, 0, 2, false, 10)) })
}

func noFlippedBitIsReplayed(t *testing.T, first []byte) {
	disk := newFS(t)
	o := testOptions(disk)
	l, _ := mustOpen(t, o)
	mustAppend(t, l, first, 0)
	for range 2 {
		mustAppend(t, l, batch(t, 1, "a", 1), 0)
	}
	end := mustSync(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	path := segmentPath(testDir, 0, logSuffix)
	flip := func(bit int) {
		overwrite(t, disk, path, func(b []byte) []byte {
			b[bit/8] ^= 1 << (bit % 8)
			return b
		})
	}
	forget := func() {
		t.Helper()
		if err := disk.Remove(segmentPath(testDir, end, snapshotSuffix)); err != nil && !isNotExist(err) {
			t.Fatal(err)
		}
	}
	want := l.Fence()
	refused := func(what string, bit int, err error) {
		t.Helper()
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.Path != path || corrupt.Position != 0 || corrupt.Offset != 0 {
			t.Fatalf("%s, bit %d of byte %d: %v", what, bit%8, bit/8, err)
		}
	}
	for bit := record.ChecksumStart * 8; bit < len(first)*8; bit++ {
		for _, how := range []Options{{CleanShutdown: true, RecoveryPoint: end}, {RecoveryPoint: end}} {
			o.CleanShutdown, o.RecoveryPoint = how.CleanShutdown, how.RecoveryPoint
			flip(bit)
			forget()
			l, _, err := Open(o)
			if err == nil {
				err = fmt.Errorf("it says %+v", l.Fence())
			}
			refused("opened", bit, err)
			flip(bit)
		}
		// A truncation that would read it changes nothing.
		l, _ := mustOpen(t, o)
		flip(bit)
		forget()
		_, err := l.TruncateTo(end - 1)
		refused("truncated", bit, err)
		if l.Fence() != want || l.EndOffset() != end {
			t.Fatalf("%+v, end %d", l.Fence(), l.EndOffset())
		}
		flip(bit)
		if err := l.Abort(); err != nil {
			t.Fatal(err)
		}
	}
}

// producerMachine keeps the batches of a log as a list, from which what is to be
// remembered follows.
type producerMachine struct {
	disk    *memfs.FS
	opts    Options
	log     *Log
	headers []record.Header
	durable int64
	noted   int64
	next    map[int64]*[2]int32 // epoch and sequence
	start   int64               // of the log; headers below it are kept
}

func (m *producerMachine) end() int64 {
	if len(m.headers) == 0 {
		return 0
	}
	return m.headers[len(m.headers)-1].NextOffset()
}

func (m *producerMachine) open(t *rapid.T, clean bool) {
	m.opts.CleanShutdown, m.opts.RecoveryPoint, m.opts.HighWatermark = clean, m.noted, m.durable
	l, report, err := Open(m.opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	if clean != report.Clean && m.end() > 0 {
		t.Fatalf("%+v", report)
	}
	m.log = l
	m.cutTo(report.End)
	m.durable = report.End
}

func (m *producerMachine) cutTo(end int64) {
	for m.end() > end {
		m.headers = m.headers[:len(m.headers)-1]
	}
	m.next = map[int64]*[2]int32{}
	for _, h := range m.headers {
		m.next[h.ProducerID] = &[2]int32{int32(h.ProducerEpoch), h.LastSequence() + 1}
	}
}

func (m *producerMachine) Append(t *rapid.T) {
	id := rapid.Int64Range(0, 4).Draw(t, "producer")
	at := m.next[id]
	if at == nil {
		at = &[2]int32{}
		m.next[id] = at
	}
	if rapid.IntRange(0, 9).Draw(t, "new epoch") == 0 {
		at[0], at[1] = at[0]+1, 0
	}
	n := rapid.IntRange(1, 4).Draw(t, "records")
	b, err := buildProduced(id, int16(at[0]), at[1], n, rapid.SampledFrom([]int{10, 3000}).Draw(t, "size"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := record.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	if c := m.log.CheckProducer(&h); c.Verdict != ProducerOK {
		t.Fatalf("producer %d at %v: %+v", id, *at, c)
	}
	info, err := m.log.Append([][]byte{b}, 1)
	if err != nil {
		t.Fatal(err)
	}
	at[1] += int32(n)
	h.BaseOffset, h.PartitionLeaderEpoch = info.BaseOffset, 1
	m.headers = append(m.headers, h)
}

func buildProduced(id int64, epoch int16, seq int32, n, size int) ([]byte, error) {
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence = id, epoch, seq
	b, err := record.NewBuilder(o)
	if err != nil {
		return nil, err
	}
	for range n {
		if _, err := b.Append(&record.Record{Timestamp: 5, Value: make([]byte, size)}); err != nil {
			return nil, err
		}
	}
	return b.Build()
}

func (m *producerMachine) Sync(t *rapid.T) {
	end, err := m.log.Sync()
	if rapid.Bool().Draw(t, "checkpoint") {
		end, err = m.log.Checkpoint()
		m.noted = end
	}
	if err != nil || end != m.end() {
		t.Fatal(end, err)
	}
	m.durable = end
}

func (m *producerMachine) Restart(t *rapid.T) {
	if err := m.log.Close(); err != nil {
		t.Fatal(err)
	}
	m.durable, m.noted = m.end(), m.end()
	m.open(t, true)
}

func (m *producerMachine) PowerCut(t *rapid.T) {
	names := []string{"nothing unsynced is kept", "all is kept", "parts are kept"}
	m.disk.Crash(keepers()[rapid.SampledFrom(names).Draw(t, "kept")](rapid.IntRange(0, 1000).Draw(t, "seed")))
	m.open(t, false)
}

func (m *producerMachine) Truncate(t *rapid.T) {
	to := rapid.Int64Range(m.start, m.end()).Draw(t, "to")
	m.noted = min(m.noted, max(0, to-4))
	end, err := m.log.TruncateTo(to)
	if err != nil {
		t.Fatal(err)
	}
	m.cutTo(end)
	m.durable = min(m.durable, end)
	if m.end() != end {
		t.Fatalf("truncated to %d: %d, want %d", to, end, m.end())
	}
}

// Retain deletes some of the records that are durable.
func (m *producerMachine) Retain(t *rapid.T) {
	for _, h := range m.headers {
		if h.NextOffset() <= m.durable && rapid.IntRange(0, 3).Draw(t, "delete") > 0 {
			m.start = max(m.start, h.NextOffset())
		}
	}
	if err := m.log.AdvanceLogStart(m.start); err != nil {
		t.Fatal(err)
	}
	if _, err := m.log.Retain(m.opts.Now(), m.durable); err != nil {
		t.Fatal(err)
	}
	m.durable = m.log.DurableEnd()
}

// Damage spoils a snapshot, as bit rot would, and restarts.
func (m *producerMachine) Damage(t *rapid.T) {
	if m.log.segs[0].base > 0 {
		t.Skip("what the segments that are gone held is in snapshots only")
	}
	if err := m.log.Close(); err != nil {
		t.Fatal(err)
	}
	m.durable, m.noted = m.end(), m.end()
	entries, err := m.disk.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range listSnapshots(entries) {
		if rapid.Bool().Draw(t, "spoil") {
			f, err := m.disk.Open(segmentPath(testDir, s.offset, snapshotSuffix))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte{'x'}, 30); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.open(t, true)
}

func (m *producerMachine) Check(t *rapid.T) {
	want := newProducerState(0)
	for i := range m.headers {
		want.apply(&m.headers[i], 0, record.Fence{}, 0)
	}
	got := m.log.producers
	if got.offset != m.end() || len(got.byID) != len(want.byID) {
		t.Fatalf("%d producers at %d, want %d at %d", len(got.byID), got.offset, len(want.byID), m.end())
	}
	for id, p := range want.byID {
		have := *got.byID[id]
		have.lastSeen = 0
		clear(have.batches[have.count:])
		clear(p.batches[p.count:])
		if !reflect.DeepEqual(have, *p) {
			t.Fatalf("producer %d: %+v, want %+v", id, have, *p)
		}
	}
}

// What is remembered of producers is what the log's batches said, through restarts,
// power cuts, truncations, deletions and damaged snapshots.
func TestProducersAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &producerMachine{disk: memfs.New(), next: map[int64]*[2]int32{}}
		if err := m.disk.MkdirAll("/disk"); err != nil {
			t.Fatal(err)
		}
		if err := m.disk.SyncDir("/"); err != nil {
			t.Fatal(err)
		}
		m.opts = testOptions(m.disk)
		m.open(t, false)
		t.Repeat(map[string]func(*rapid.T){
			"append": m.Append, "append more": m.Append, "append still more": m.Append, "sync": m.Sync,
			"restart": m.Restart, "power cut": m.PowerCut, "truncate": m.Truncate, "retain": m.Retain, "damage": m.Damage, "": m.Check,
		})
		if err := m.log.Abort(); err != nil {
			t.Fatal(err)
		}
	})
}

// After a Checkpoint, recovery reads nothing below it, not even headers.
func TestCheckpointSparesHeaders(t *testing.T) {
	disk := newFS(t)
	l, _ := mustOpen(t, testOptions(disk))
	for i := range int32(6) {
		mustAppend(t, l, produced(t, 1, 0, i, 1, false, 5000), 0)
	}
	point, err := l.Checkpoint()
	if err != nil || point != 6 {
		t.Fatal(point, err)
	}
	mustAppend(t, l, produced(t, 1, 0, 6, 1, false, 5000), 0)
	mustSync(t, l)
	disk.Crash(nil)
	reads := func(spoil bool) int {
		t.Helper()
		faulty := errorfs.Wrap(disk)
		o := testOptions(faulty)
		o.RecoveryPoint = point
		if spoil {
			if err := disk.Remove(segmentPath(testDir, 6, snapshotSuffix)); err != nil {
				t.Fatal(err)
			}
		}
		l, _, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if c := l.CheckProducer(header(t, produced(t, 1, 0, 4, 1, false, 1))); c.Verdict != ProducerDuplicate || c.BaseOffset != 4 {
			t.Fatalf("%+v", c)
		}
		if err := l.Abort(); err != nil {
			t.Fatal(err)
		}
		return faulty.Count(errorfs.OpRead)
	}
	if with, without := reads(false), reads(true); with >= without {
		t.Fatalf("%d reads with a snapshot, %d without", with, without)
	}
}

// A log remembers so many producers and no more; the idlest go.
func TestProducersAreBounded(t *testing.T) {
	s := newProducerState(0)
	for i := range int64(maxProducers + 10) {
		h := record.Header{BaseOffset: i, ProducerID: i}
		s.apply(&h, 0, record.Fence{}, i)
	}
	if len(s.byID) > maxProducers || s.byID[0] != nil || s.byID[maxProducers] == nil {
		t.Fatalf("%d producers", len(s.byID))
	}
}

func TestGoldenSnapshot(t *testing.T) {
	s := newProducerState(20)
	s.fence = record.Fence{ShardEpoch: 3, Attempt: 1}
	p := &producer{epoch: 2, lastSeen: 1700000000000, txnFirst: noTransaction}
	p.add(producerBatch{0, 4, 10, 14, 1000})
	p.add(producerBatch{5, 5, 19, 19, 1001})
	s.byID[9] = p
	body := "leat producer-snapshot 1\noffset 20\nfence 3 1\nproducer 9 2 1700000000000 -1 0 4 10 14 1000 5 5 19 19 1001\n"
	if got, want := string(s.encode()), fmt.Sprintf("%scrc32c %08x\n", body, bitCRC([]byte(body))); got != want {
		t.Fatalf("%q, want %q", got, want)
	}
}
