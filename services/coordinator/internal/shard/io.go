package shard

import (
	"context"
	"errors"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/failpoint"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/offsets"
)

// loadChunk is how many records of a load are handed to the loop at once.
const loadChunk = 512

// report hands a result to the loop, unless the shard stops first.
func (s *Shard) report(ctx context.Context, r result) {
	select {
	case s.results <- r:
	case <-ctx.Done():
	}
}

// result works on what an append, a fence or a load came to.
func (s *Shard) result(ctx context.Context, r result) {
	if r.attempt != s.fence.Attempt {
		return // of an attempt that was given up
	}
	if r.start != nil {
		s.step(ctx, *r.start)
		return
	}
	s.fence.Sequence += r.used
	if r.end != 0 {
		s.end = r.end
	}
	if r.refused != nil {
		s.logger.Error("the shard cannot be served", "error", r.refused)
		s.mu.Lock()
		s.refused = r.refused
		s.mu.Unlock()
		return
	}
	if f, ok := r.event.(group.Failed); ok && f.Kind == group.Unknown {
		s.logger.Warn("the outcome of an append is unknown; the shard is fenced and loaded again", "attempt", r.attempt, "error", r.err)
	}
	s.trouble(r.err)
	if confirms(r.event) {
		s.answered()
	}
	if s.noteLack(r) {
		s.withdraw()
	}
	for _, kv := range r.kvs {
		s.step(ctx, group.Replayed{KV: kv})
	}
	if r.event == nil {
		return
	}
	s.step(ctx, r.event)
	if _, loaded := r.event.(group.Loaded); loaded {
		s.logger.Info("the shard is loaded", "groups", len(s.state.List()), "attempt", s.fence.Attempt, "end_offset", s.end)
	}
}

// troubleAfter is how long the log of a shard may fail before that is worth a
// warning: leaders come and go.
const troubleAfter = 3 * time.Second

// trouble logs once that the log of the shard goes on failing, and once that it
// works again.
func (s *Shard) trouble(err error) {
	switch {
	case err == nil:
		if s.warned {
			s.logger.Info("the log of the shard works again")
		}
		s.failingSince, s.warned = time.Time{}, false
	case s.failingSince.IsZero():
		s.failingSince = time.Now()
		s.logger.Debug("the log of the shard fails; trying again", "error", err)
	case !s.warned && time.Since(s.failingSince) > troubleAfter:
		s.warned = true
		s.logger.Warn("the log of the shard goes on failing; trying again until it works", "error", err)
	}
}

// startFence appends the FENCE of (epoch, attempt). Whatever its failure, the next
// attempt follows.
func (s *Shard) startFence(ctx context.Context, e group.Fence) {
	fence := offsets.Fence{ShardEpoch: e.Epoch, Attempt: e.Attempt}
	s.fence = fence
	s.asked()
	s.work.Go(func() {
		r := result{attempt: e.Attempt, used: 1}
		batch, err := offsets.FenceBatch(fence, time.Now().UnixMilli())
		var base int64
		if err == nil {
			base, err = s.append(ctx, fence, batch)
		}
		r.event, r.end, r.err = group.FenceResult{OK: err == nil}, base+1, err
		s.report(ctx, r)
	})
}

func (s *Shard) append(ctx context.Context, fence offsets.Fence, batch []byte) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AppendTimeout)
	defer cancel()
	if err := failpoint.Hit(failpoint.GroupAppend); err != nil {
		return 0, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "%w", err).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
	}
	base, err := s.log.Append(ctx, s.partition, fence, batch)
	if err == nil {
		if err := failpoint.Hit(failpoint.GroupAppended); err != nil {
			return 0, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "%w", err)
		}
	}
	return base, err
}

// startAppend appends what the core wants, in as many batches as it takes.
func (s *Shard) startAppend(ctx context.Context, op group.Op, kvs []group.KV) {
	fence := s.fence
	s.asked()
	s.work.Go(func() {
		began := time.Now()
		r := result{attempt: fence.Attempt, event: group.Committed{Op: op}}
		batches, err := offsets.Batches(kvs, s.cfg.MaxBatchBytes, time.Now().UnixMilli())
		if err != nil {
			// Nothing can be done about what cannot be encoded, but for dropping it.
			r.event, r.err = group.Failed{Op: op, Kind: group.Unknown}, err
		}
		for i, batch := range batches {
			if _, err := s.append(ctx, fence, batch); err != nil {
				failed := group.Failed{Op: op, Kind: failKind(err, i)}
				r.event, r.err = failed, err
				s.cfg.metrics.failed(failed.Kind)
				break
			}
			fence.Sequence++
			r.used++
		}
		if r.err == nil {
			s.cfg.metrics.appended(kvs, time.Since(began))
		}
		s.report(ctx, r)
	})
}

// failKind says what an error means for an append of which done batches are in the
// log already. A refused fence means that somebody else may own the shard, or that
// an attempt was lost sight of: only a new one tells.
func failKind(err error, done int) group.FailKind {
	e := rpc.FromError(err)
	if done > 0 || e.Outcome != typev1.Outcome_OUTCOME_NOT_DONE || e.Reason == typev1.ErrorReason_ERROR_REASON_SHARD_FENCED {
		return group.Unknown
	}
	return group.NotDone
}

// startLoad reads the log up to the fencing record.
func (s *Shard) startLoad(ctx context.Context) {
	attempt, end := s.fence.Attempt, s.end
	s.work.Go(func() {
		select {
		case s.loads <- struct{}{}:
			defer func() { <-s.loads }()
		case <-ctx.Done():
			return
		}
		began := time.Now()
		err := s.load(ctx, attempt, end)
		if err == nil {
			s.cfg.metrics.loadSeconds.Observe(time.Since(began).Seconds())
		}
		r := result{attempt: attempt, event: group.Loaded{}}
		var format *offsets.FormatError
		switch {
		case errors.As(err, &format):
			r = result{attempt: attempt, refused: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE,
				"shard %d is not served here: %w", s.partition, err)}
		case err != nil:
			r.event, r.err = group.LoadFailed{}, err
		}
		s.report(ctx, r)
	})
}

func (s *Shard) load(ctx context.Context, attempt int32, end int64) error {
	read, cancel := context.WithTimeout(ctx, s.cfg.LoadTimeout)
	defer cancel()
	chunk := make([]group.KV, 0, loadChunk)
	err := s.log.Read(read, s.partition, end, func(key, value []byte) error {
		kv, err := offsets.Decode(key, value)
		if err != nil {
			return err
		}
		if chunk = append(chunk, kv); len(chunk) == loadChunk {
			s.report(ctx, result{attempt: attempt, kvs: chunk})
			chunk = make([]group.KV, 0, loadChunk)
		}
		return nil
	})
	if err == nil && len(chunk) > 0 {
		s.report(ctx, result{attempt: attempt, kvs: chunk})
	}
	return err
}

// Questions for starts: how many may be open at once, those that are asked again apart,
// so that they hold up nobody else; and how long the first and the longest may take. A
// partition without a leader keeps the others of its question waiting that long, so the
// first is short.
const (
	maxResolving   = 256
	maxAgain       = 16
	firstResolving = time.Second
	mostDoublings  = 5
)

// startResolve asks where partitions start.
func (s *Shard) startResolve(ctx context.Context, e group.ResolveStart) {
	attempt, slots := s.fence.Attempt, s.resolving
	if e.Tries > 0 {
		slots = s.again
	}
	s.work.Go(func() {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return
		}
		ask, cancel := context.WithTimeout(ctx, firstResolving<<min(e.Tries, mostDoublings))
		defer cancel()
		found := s.cfg.Starts.Resolve(ask, e.Policy, e.Parts)
		s.report(ctx, result{attempt: attempt, start: &group.Start{Job: e.Job, Group: e.Group, Results: found}})
	})
}
