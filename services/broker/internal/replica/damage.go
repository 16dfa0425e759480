package replica

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// recentSpan is how long what was appended is taken to be in memory still: it was
// checked on its way in, and is read mostly at once.
const recentSpan = 30 * time.Second

// recent remembers roughly where the log ended recentSpan ago. The zero value takes
// nothing for recent.
type recent struct {
	from, next atomic.Int64 // offset+1; 0: none
	at         atomic.Int64 // when next was noted
}

// note tells of an append at an offset.
func (r *recent) note(base int64, now time.Duration) {
	at := r.at.Load()
	if at != 0 && now-time.Duration(at) < recentSpan {
		return
	}
	if at == 0 || now-time.Duration(at) >= 2*recentSpan {
		r.next.Store(base + 1) // what was noted last is old by now
	}
	r.from.Store(r.next.Load())
	r.next.Store(base + 1)
	r.at.Store(int64(now))
}

// has reports whether everything from an offset on was appended lately.
func (r *recent) has(offset int64, now time.Duration) bool {
	at, from := r.at.Load(), r.from.Load()
	return at != 0 && from != 0 && now-time.Duration(at) < 2*recentSpan && offset >= from-1
}

// readBatches reads whole batches and looks at their checksums, unless they were
// appended a moment ago. What does not match is read once more, lest memory or a
// cable is taken for the disk. The buffer is the caller's; it is nil with an error,
// and may be nil without data.
func (r *Replica) readBatches(log *commitlog.Log, from, upTo int64, maxBytes int) (*rpc.Buffer, commitlog.ReadResult, error) {
	for again := false; ; again = true {
		var buf *rpc.Buffer
		read := r.readBegins()
		res, err := log.Read(from, upTo, maxBytes, func(n int) []byte {
			buf = rpc.GetBuffer(n)
			return buf.Bytes()
		})
		r.reads.end(read)
		if err == nil && (again || !r.recent.has(from, r.m.now())) {
			err = checkBatches(log.Dir(), res.Data)
		}
		if err == nil {
			return buf, res, nil
		}
		buf.Free()
		var corrupt *commitlog.CorruptError
		if again || !errors.As(err, &corrupt) {
			return nil, res, err
		}
	}
}

// checkBatches looks at the checksums of a run of whole batches.
func checkBatches(dir string, data []byte) error {
	for len(data) > 0 {
		batch, rest, err := record.NextBatch(data)
		if err != nil {
			return &commitlog.CorruptError{Path: dir, Position: -1, Offset: -1, Detail: "a batch was cut short", Err: err}
		}
		if h, err := record.Validate([][]byte{batch}, record.ValidateOptions{}); err != nil {
			return &commitlog.CorruptError{Path: dir, Position: -1, Offset: h.BaseOffset, Detail: "a stored batch is damaged", Err: err}
		}
		data = rest
	}
	return nil
}

// readBroken makes an error of a failed read of a log, and draws the consequences.
func (r *Replica) readBroken(log *commitlog.Log, err error) *rpc.Error {
	var corrupt *commitlog.CorruptError
	if errors.As(err, &corrupt) {
		r.damaged(log, corrupt)
	}
	return r.readFailed(err)
}

// suspect looks, beside everything else, whether a log is damaged where something that
// reads it for itself says so: what that cannot make sense of may be whole, and merely
// more than it takes. The caller holds mu.
func (r *Replica) suspect(cause *commitlog.CorruptError) {
	log := r.log()
	if log == nil || cause.Offset < 0 || r.condemned.Load() {
		return
	}
	r.begin(func() {
		upTo := log.EndOffset()
		if cause.Offset >= upTo {
			return
		}
		buf, res, err := r.readBatches(log, cause.Offset, upTo, digestChunk)
		if err == nil {
			err = checkBatches(log.Dir(), res.Data)
			buf.Free()
		}
		var corrupt *commitlog.CorruptError
		if errors.As(err, &corrupt) {
			r.damaged(log, corrupt)
		}
	})
}

// damaged deals with a log that turned out to be damaged while it was read: where
// another replica has what this one has, this one serves no more, and is told of,
// barred and fetched again. The verdict is durable before that. Where nobody else
// has it, the rest of the log is served on.
func (r *Replica) damaged(log *commitlog.Log, cause *commitlog.CorruptError) {
	stored := r.stored()
	if stored == nil || stored.Log != log || !r.condemned.CompareAndSwap(false, true) {
		return
	}
	first := !r.damageTold.Swap(true)
	if first {
		r.m.cfg.Metrics.damagedLogs.Inc()
	}
	if !r.m.othersHave(r.Key) {
		r.condemned.Store(false) // another replica may have it some day
		if !first {
			return
		}
		r.m.cfg.Logger.Error("a log is damaged, and no other replica can take its place: what is whole is served on", "replica", r.Name(), "dir", stored.Dir, "error", cause)
		return
	}
	ended := r.m.io.begin(r.m.now())
	err := r.m.cfg.Store.SetVerdict(r.Key, store.Corrupt)
	if ended(); err != nil {
		r.condemned.Store(false) // the next read that meets it tries again
		r.m.cfg.Logger.Error("a log is damaged, and that could not be noted", "replica", r.Name(), "dir", stored.Dir, "error", err, "damage", cause)
		if store.IsDiskFault(err) {
			r.m.diskFailed(stored.Disk, err)
		}
		return
	}
	r.m.cfg.Logger.Error("a log is damaged: the replica is withheld until it has been fetched again", "replica", r.Name(), "dir", stored.Dir, "error", cause)
	r.mu.Lock()
	r.withheld = true
	r.step(partition.DiskOffline{})
	r.mu.Unlock()
	r.m.reportBad(store.Vouch{DiskID: stored.Disk.ID, Key: r.Key, LastEpoch: log.LatestEpoch(), End: log.EndOffset(), Verdict: store.Corrupt})
}

// othersHave reports whether a replica on another broker is, by the metadata, as
// good as this one ever was.
func (m *Manager) othersHave(k store.Key) bool {
	image := m.image.Load()
	if image == nil {
		return false
	}
	p := image.Partition(k.Topic, k.Partition)
	return slices.ContainsFunc(slices.Concat(p.GetIsr(), p.GetElr()), func(id int32) bool {
		return id != m.cfg.Self.Broker && !slices.Contains(p.GetBarred(), id)
	})
}

// mayReopen reports whether a replica that was condemned at run time may begin anew:
// the controller has put it on record.
func (m *Manager) mayReopen(r *Replica) bool {
	r.mu.Lock()
	withheld := r.withheld
	r.mu.Unlock()
	return withheld && m.badIsTold(r.Key)
}
