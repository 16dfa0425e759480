package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// appendCopy appends what a leader sent. The caller holds mu, which is released
// during the I/O.
func (r *Replica) appendCopy(e *partition.AppendCopy) {
	run := r.takeRun(e.Ref)
	if run == nil {
		r.step(partition.AppendRefused{Op: e.Op, Now: r.m.now()})
		return
	}
	room := r.makeRoom(run.Payload.Len())
	if !room || r.core.Down() != partition.ReasonNone {
		run.Payload.Free()
		r.step(partition.AppendRefused{Op: e.Op, Full: !room, Now: r.m.now()})
		return
	}
	r.mu.Unlock()
	span := r.startCopy(run)
	done, err := r.copyBatches(e, run)
	run.Payload.Free()
	endCopy(span, err)
	r.mu.Lock()
	if done.End > e.Base && span != nil {
		r.ring.add(spanRange{base: e.Base, end: done.End, span: span.SpanContext()})
	}
	switch {
	case err == nil:
		r.recent.note(e.Base, done.Now)
		r.ages.note(e.Base, done.Now, r.leaderHW > done.End)
		r.step(done)
	case refusedBatch(err), isStale(err):
		r.m.cfg.Metrics.copyFailures.Inc()
		r.m.cfg.Logger.Warn("a replica took only part of what its leader sent; it asks again", "replica", r.Name(), "base", e.Base, "took_up_to", done.End, "error", err)
		r.copied(e, done, false)
	case noSpace(err):
		r.m.cfg.Store.NoRoom(r.stored().Disk)
		r.copied(e, done, true)
	default:
		r.failed(e.Op, err)
	}
}

// copied reports a run of which the log refused some. The caller holds mu.
func (r *Replica) copied(e *partition.AppendCopy, done *partition.Appended, full bool) {
	if done.End > e.Base {
		r.step(done)
		return
	}
	r.step(partition.AppendRefused{Op: e.Op, Full: full, Now: r.m.now()})
}

// copyBatches validates and appends the batches of a run and tells how far it came.
func (r *Replica) copyBatches(e *partition.AppendCopy, run *Run) (*partition.Appended, error) {
	done := &partition.Appended{Op: e.Op, Base: e.Base, End: e.Base, LastEpoch: -1}
	r.ioBegins(&r.appendSince)
	defer r.appendSince.Store(0)
	if err := failpoint.Hit(failpoint.FollowAppend); err != nil {
		return done, err
	}
	log := r.log()
	latest := log.LatestEpoch()
	batches, headers, invalid := splitRun(run.Payload.Vecs(), run.LeaderEpoch)
	taken, err := r.beginWithin(batches, headers)
	if err == nil {
		var more int
		more, err = log.AppendRun(batches[taken:])
		taken += more
	}
	for i := range headers[:taken] {
		h := &headers[i]
		if h.PartitionLeaderEpoch > latest {
			latest = h.PartitionLeaderEpoch
			done.Epochs = append(done.Epochs, partition.EpochStart{Epoch: latest, Start: h.BaseOffset})
		}
		done.End, done.LastEpoch = h.NextOffset(), h.PartitionLeaderEpoch
	}
	done.Now = r.m.now()
	return done, cmp.Or(err, invalid)
}

// beginWithin lets a log that was begun anew within a batch hold the whole batch: where
// deleted records left the leader's log start in the middle of one, a replica is begun
// there, and the leader's first batch lies below. Its records below the start go at once
// again. It returns how many batches it took, 1 or 0.
func (r *Replica) beginWithin(batches [][][]byte, headers []record.Header) (taken int, err error) {
	log := r.log()
	start, end := log.StartOffset(), log.EndOffset()
	if len(headers) == 0 || start != end || headers[0].BaseOffset >= end || headers[0].LastOffset() < end {
		return 0, nil
	}
	producers := log.ProducersBelow(headers[0].BaseOffset)
	steps := []func() error{
		func() error {
			err := r.m.cfg.Store.LowerMarks(r.Key, headers[0].BaseOffset)
			if err == nil {
				err = log.ResetTo(headers[0].BaseOffset)
			}
			return err
		},
		func() error { return log.InheritProducers(producers) },
		func() (err error) {
			taken, err = log.AppendRun(batches[:1])
			return err
		},
		func() error { return log.AdvanceLogStart(start) },
	}
	// Once it is begun it has to be finished: what the log is to be, and what it knew of
	// producers, is known here only. A start in between finds a log that ends below its
	// leader's start, and begins anew, or one that moves its start as any follower does.
	for i := 0; err == nil && i < len(steps); i++ {
		err = r.whenThereIsRoom(&r.appendSince, steps[i])
	}
	r.ioBegins(&r.appendSince)
	r.m.cfg.Store.MarksLowered(r.Key)
	return taken, err
}

// splitRun cuts a run into its batches, without copying them, and validates each. With
// an error it gives those before the one that is wrong.
func splitRun(vecs [][]byte, leaderEpoch int32) (batches [][][]byte, headers []record.Header, err error) {
	vecs = slices.Clone(vecs) // it is eaten up from the front
	var flat [][]byte
	var ends []int // of each batch, in flat
	for left := record.VecLen(vecs); left > 0; {
		var h record.Header
		h, err = record.ParseHeaderVec(vecs)
		if err == nil && h.Size() > left {
			err = &record.CorruptError{Position: left, Detail: fmt.Sprintf("the run ends within a batch of %d bytes", h.Size())}
		}
		if err != nil {
			break
		}
		begin := len(flat)
		for n := h.Size(); n > 0; {
			k := min(n, len(vecs[0]))
			flat = append(flat, vecs[0][:k])
			n -= k
			if vecs[0] = vecs[0][k:]; len(vecs[0]) == 0 {
				vecs = vecs[1:]
			}
		}
		if h, err = record.Validate(flat[begin:], record.ValidateOptions{}); err == nil && h.PartitionLeaderEpoch > leaderEpoch {
			err = &record.CorruptError{Detail: fmt.Sprintf("the batch at offset %d is of leader epoch %d and comes from a leader of epoch %d", h.BaseOffset, h.PartitionLeaderEpoch, leaderEpoch)}
		}
		if err != nil {
			break
		}
		left -= h.Size()
		headers, ends = append(headers, h), append(ends, len(flat))
	}
	begin := 0
	for _, end := range ends {
		batches = append(batches, flat[begin:end:end])
		begin = end
	}
	return batches, headers, err
}

// isStale reports whether the log refused a batch because of its place or epoch.
func isStale(err error) bool {
	var order *commitlog.OutOfOrderError
	var epoch *commitlog.StaleEpochError
	return errors.As(err, &order) || errors.As(err, &epoch)
}

// startCopy begins the span of a replica's append, if the run carries a trace.
func (r *Replica) startCopy(run *Run) trace.Span {
	if r.m.cfg.Tracer == nil || run.Trace.GetTraceparent() == "" {
		return nil
	}
	ctx := rpc.ExtractTrace(context.Background(), run.Trace)
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return nil
	}
	_, span := r.m.cfg.Tracer.Start(ctx, "replica append "+r.Topic, trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(
		attribute.String("messaging.system", "leat"),
		attribute.String("messaging.destination.name", r.Topic),
		attribute.Int("messaging.destination.partition.id", int(r.Key.Partition)),
		attribute.Int("messaging.leat.broker", int(r.m.cfg.Self.Broker)),
		attribute.Int64("messaging.leat.offset", run.Base),
		attribute.Int64("messaging.leat.next_offset", run.End),
		attribute.Int("messaging.message.body.size", run.Payload.Len()),
	))
	return span
}

func endCopy(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.RecordError(err)
	}
	span.End()
}

// truncate cuts the log, durably. The caller holds mu, which is released during the
// I/O.
func (r *Replica) truncate(e *partition.Truncate) {
	if e.Unclean {
		r.m.cfg.Metrics.uncleanTruncations.Inc()
		r.m.cfg.Logger.Error("an unclean election chose a leader that lacks committed records; they are cut off here", "replica", r.Name(), "topic_id", r.Key.Topic,
			"from", e.From, "to", e.To, "high_watermark", e.HW)
	} else {
		r.m.cfg.Logger.Info("cuts off what the leader does not have", "replica", r.Name(), "from", e.From, "to", e.To, "high_watermark", e.HW)
	}
	r.mu.Unlock()
	log := r.log()
	end := int64(0)
	err := r.whenThereIsRoom(&r.appendSince, func() error {
		err := r.m.cfg.Store.LowerMarks(r.Key, e.To)
		if err == nil {
			end, err = log.TruncateTo(e.To)
		}
		return err
	})
	r.m.cfg.Store.MarksLowered(r.Key)
	var corrupt *commitlog.CorruptError
	if errors.As(err, &corrupt) {
		// Nothing was cut. The leader has what this copy should have.
		r.damaged(log, corrupt)
	}
	r.mu.Lock()
	if err != nil {
		r.failed(e.Op, err)
		return
	}
	r.ring, r.checkpointed = spanRing{}, 0
	r.ages.cut(end)
	r.step(&partition.Truncated{Op: e.Op, End: end, Epochs: epochsOf(log), Now: r.m.now()})
	r.tellReaders(false)
}

// reset lets the log begin anew, durably: in a fresh folder where the copy is bad or
// absent. The caller holds mu, which is released during the I/O.
func (r *Replica) reset(e *partition.Reset) {
	r.m.cfg.Logger.Warn("a replica begins anew, to be filled by its leader", "replica", r.Name(), "topic_id", r.Key.Topic, "at", e.To, "keeps_bad_copy", e.Keep)
	config := r.m.logConfig(r.Key, r.Config())
	r.resetting = true
	r.mu.Unlock()
	err := r.whenThereIsRoom(&r.appendSince, func() error { return r.resetLog(e, config) })
	r.mu.Lock()
	r.resetting = false
	if err != nil {
		r.resetFailed(e.Op, err)
		return
	}
	r.ring, r.checkpointed, r.ages = spanRing{}, 0, ages{since: r.m.now()}
	log := r.log()
	r.step(&partition.Truncated{Op: e.Op, End: log.EndOffset(), Epochs: epochsOf(log), Now: r.m.now()})
	r.tellReaders(false)
}

func (r *Replica) resetLog(e *partition.Reset, config commitlog.Config) error {
	if e.Keep || r.log() == nil {
		stored, err := r.m.cfg.Store.Replace(r.Key, r.Topic, config)
		if err != nil {
			return err
		}
		if r.home.Swap(stored) == nil {
			r.m.cfg.Logger.Info("created a replica", "dir", stored.Dir, "topic_id", r.Key.Topic)
		}
		if e.To == stored.Log.EndOffset() {
			return nil
		}
		return stored.Log.ResetTo(e.To)
	}
	err := r.m.cfg.Store.LowerMarks(r.Key, e.To)
	if err == nil {
		err = r.log().ResetTo(e.To)
	}
	r.m.cfg.Store.MarksLowered(r.Key)
	return err
}

// resetFailed deals with a replica that could not begin anew. The caller holds mu.
func (r *Replica) resetFailed(op int64, err error) {
	if stored := r.stored(); stored != nil {
		r.failed(op, err)
		return
	}
	r.m.cfg.Logger.Error("a missing replica could not be made anew; it is tried again after a restart", "replica", r.Name(), "error", err)
	kind := partition.FailedBug
	if store.IsDiskFault(err) {
		kind = partition.FailedIO
	}
	r.step(partition.IOFailed{Op: op, Kind: kind})
}

// epochsOf is a log's epoch cache as the core wants it.
func epochsOf(log *commitlog.Log) []partition.EpochStart {
	var all []partition.EpochStart
	for _, e := range log.Epochs() {
		all = append(all, partition.EpochStart{Epoch: e.Epoch, Start: e.StartOffset})
	}
	return all
}

// moveStart lets the log begin later, beside whatever else runs. The caller holds mu.
func (r *Replica) moveStart(op, to int64) {
	r.begin(func() {
		log := r.log()
		err := r.whenThereIsRoom(&r.startSince, func() error { return log.AdvanceLogStart(to) })
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil && !r.overtaken(log, err) {
			r.failed(op, err)
			return
		}
		start := int64(0) // of a log that is there no more
		if err == nil {
			start = log.StartOffset()
		}
		r.step(partition.StartMoved{Op: op, Start: start, Now: r.m.now()})
		r.tellReaders(false)
	})
}

// inBackground clears the verdict on the replica, or removes the bad copy whose replacement
// is in sync, in the background. The caller holds mu.
func (r *Replica) inBackground(what string, do func(store.Key) error) {
	r.begin(func() {
		if err := do(r.Key); err != nil {
			r.m.cfg.Logger.Error("could not "+what+"; the next start tries again", "replica", r.Name(), "error", err)
			return
		}
		r.m.cfg.Logger.Info("the verdict on a replica is settled", "replica", r.Name(), "did", what)
	})
}
