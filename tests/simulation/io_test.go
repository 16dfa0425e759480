package simulation

import (
	"errors"
	"fmt"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
)

// The faults of a disk.
var (
	errDisk  = errors.New("input/output error")
	errPower = errors.New("the power failed")
)

// runTask carries out an append, a copy, a truncation or a reset.
func (r *replica) runTask(e partition.Effect) partition.Event {
	switch e := e.(type) {
	case *partition.Append:
		return r.runAppend(e)
	case *partition.AppendCopy:
		return r.runCopy(e)
	case *partition.Truncate:
		return r.runTruncate(e)
	case *partition.Reset:
		return r.runReset(e)
	}
	panic(fmt.Sprintf("no operation: %T", e))
}

// runAppend appends a client's batch, unless the log has it already or may not take it.
func (r *replica) runAppend(e *partition.Append) partition.Event {
	b := r.current
	r.current = nil
	leader, epoch := r.core.Leader()
	if b == nil || r.core.Down() != partition.ReasonNone || leader != r.b.self() || epoch != e.Epoch {
		return partition.AppendRefused{Op: e.Op}
	}
	if b.fence != nil && (record.Fence{ShardEpoch: b.fence.ShardEpoch, Attempt: int64(b.fence.Attempt)}).Less(r.log.Fence()) {
		r.refused = &errProducer{}
		return partition.AppendRefused{Op: e.Op}
	}
	switch check := r.log.CheckProducer(&b.header); check.Verdict {
	case commitlog.ProducerOK:
	case commitlog.ProducerDuplicate:
		r.w.count("duplicate answered")
		return &partition.Duplicate{Op: e.Op, Base: check.BaseOffset, End: check.LastOffset + 1}
	default:
		r.w.count("batch out of sequence refused")
		r.refused = &errProducer{check}
		return partition.AppendRefused{Op: e.Op}
	}
	if !r.hasRoom() {
		return r.refuseFull(e.Op)
	}
	info, err := r.log.Append([][]byte{b.data}, e.Epoch)
	if noSpace(err) {
		return r.refuseFull(e.Op)
	}
	if err != nil {
		return r.failed(e.Op, err)
	}
	r.p.claim(r, e.Epoch)
	r.w.count("append")
	r.w.say("broker %d#%d appends %s at %d of %s, epoch %d", r.b.id, r.b.inc, describe(b.data), info.BaseOffset, r.w.name(r.id), e.Epoch)
	return &partition.Appended{Op: e.Op, Base: info.BaseOffset, End: info.LastOffset + 1}
}

// runCopy validates and appends what the leader sent.
func (r *replica) runCopy(e *partition.AppendCopy) partition.Event {
	data := r.runs[e.Ref]
	delete(r.runs, e.Ref)
	if data == nil || r.core.Down() != partition.ReasonNone {
		return partition.AppendRefused{Op: e.Op}
	}
	if !r.hasRoom() {
		return r.refuseFull(e.Op)
	}
	done := &partition.Appended{Op: e.Op, Base: e.Base, End: e.Base, LastEpoch: -1}
	latest := r.log.LatestEpoch()
	for len(data) > 0 {
		batch, rest, err := record.NextBatch(data)
		if err == nil {
			_, err = record.Validate([][]byte{batch}, record.ValidateOptions{})
		}
		if err != nil {
			r.w.fail("DAMAGED", "a leader sent broker %d a batch of %s that does not check out: %v", r.b.id, r.w.name(r.id), err)
			return nil
		}
		h, _ := record.ParseHeader(batch)
		info, err := r.appendAt(batch, &h)
		if err != nil {
			var order *commitlog.OutOfOrderError
			var epoch *commitlog.StaleEpochError
			if errors.As(err, &order) || errors.As(err, &epoch) || noSpace(err) {
				r.w.count("copy refused by the log")
				if done.End > e.Base {
					return done
				}
				if noSpace(err) {
					return r.refuseFull(e.Op)
				}
				return partition.AppendRefused{Op: e.Op}
			}
			return r.failed(e.Op, err)
		}
		if h.PartitionLeaderEpoch > latest {
			latest = h.PartitionLeaderEpoch
			done.Epochs = append(done.Epochs, partition.EpochStart{Epoch: latest, Start: info.BaseOffset})
		}
		done.End, done.LastEpoch = info.LastOffset+1, h.PartitionLeaderEpoch
		data = rest
	}
	if f := r.log.Fence(); r.p.topic.internal {
		done.Fence = partition.Fence{ShardEpoch: f.ShardEpoch, Attempt: int32(f.Attempt)}
	}
	r.w.count("copy")
	r.w.say("broker %d#%d copies [%d,%d) of %s", r.b.id, r.b.inc, e.Base, done.End, r.w.name(r.id))
	return done
}

// appendAt appends a batch as the leader has it. A log that was begun anew where the
// leader's begins may begin within the batch: then it begins with the batch, and its
// start is moved to where it was.
func (r *replica) appendAt(batch []byte, h *record.Header) (commitlog.AppendInfo, error) {
	start, end := r.log.StartOffset(), r.log.EndOffset()
	if h.BaseOffset >= end || h.LastOffset() < end || start != end {
		return r.log.AppendAt([][]byte{batch})
	}
	r.w.count("log begun within a batch")
	producers := r.log.ProducersBelow(h.BaseOffset)
	err := r.b.lowerMarks(r, h.BaseOffset)
	if err == nil {
		err = r.log.ResetTo(h.BaseOffset)
	}
	if err != nil {
		return commitlog.AppendInfo{}, err
	}
	if err := r.log.InheritProducers(producers); err != nil {
		return commitlog.AppendInfo{}, err
	}
	info, err := r.log.AppendAt([][]byte{batch})
	if err == nil {
		err = r.log.AdvanceLogStart(start)
	}
	return info, err
}

func (r *replica) runTruncate(e *partition.Truncate) partition.Event {
	r.w.count("truncation")
	if e.Unclean {
		r.w.count("truncation below the high watermark")
	}
	end := int64(0)
	err := r.b.lowerMarks(r, e.To)
	if err == nil {
		end, err = r.log.TruncateTo(e.To)
	}
	r.w.say("broker %d#%d truncates %s from %d to %d (hw %d, unclean=%v): %v", r.b.id, r.b.inc, r.w.name(r.id), e.From, end, e.HW, e.Unclean, err)
	if lacksRoom(err) {
		r.task = e
		return r.awaitRoom()
	}
	if err != nil {
		return r.failed(e.Op, err)
	}
	r.hwSeen, r.cut = min(r.hwSeen, end), true
	if end <= r.b.disk.rotAt[r.id] {
		delete(r.b.disk.rotten, r.id)
	}
	return &partition.Truncated{Op: e.Op, End: end, Epochs: epochsOf(r.log)}
}

func (r *replica) runReset(e *partition.Reset) partition.Event {
	if (e.Keep || r.log == nil) && r.b.disk.room == full {
		r.task = e
		return r.awaitRoom()
	}
	r.w.count("log begun anew")
	var err error
	if e.Keep || r.log == nil {
		if err = r.b.replace(r); err == nil && e.To != r.log.EndOffset() {
			err = r.log.ResetTo(e.To)
		}
	} else {
		if err = r.b.lowerMarks(r, e.To); err == nil {
			err = r.log.ResetTo(e.To)
		}
	}
	r.w.say("broker %d#%d begins %s anew at %d (keeps a bad copy: %v): %v", r.b.id, r.b.inc, r.w.name(r.id), e.To, e.Keep, err)
	if lacksRoom(err) {
		r.task = e
		return r.awaitRoom()
	}
	if err != nil {
		return r.failed(e.Op, asFailed(err))
	}
	delete(r.b.disk.rotten, r.id)
	r.hwSeen, r.cut = -1, true
	return &partition.Truncated{Op: e.Op, End: r.log.EndOffset(), Epochs: epochsOf(r.log)}
}

// asFailed takes any error of making a folder for one of the disk.
func asFailed(err error) error {
	if errors.Is(err, errPower) || errors.Is(err, commitlog.ErrFailed) {
		return err
	}
	if errors.Is(err, errDisk) {
		return errors.Join(errDisk, err)
	}
	return err
}

func (r *replica) runSync() partition.Event {
	op := r.syncOp
	r.syncOp = 0
	end, err := r.log.Sync()
	if err != nil {
		return r.failed(op, err)
	}
	return &partition.Synced{Op: op, End: end}
}

func (r *replica) runMove() partition.Event {
	op, to := r.moveOp, r.moveTo
	r.moveOp = 0
	if err := r.log.AdvanceLogStart(to); lacksRoom(err) {
		r.moveOp = op
		return r.awaitRoom()
	} else if err != nil {
		return r.failed(op, err)
	}
	r.w.count("log start moved")
	r.p.deleted = max(r.p.deleted, r.log.StartOffset())
	r.w.say("broker %d#%d lets %s begin at %d", r.b.id, r.b.inc, r.w.name(r.id), r.log.StartOffset())
	return partition.StartMoved{Op: op, Start: r.log.StartOffset()}
}

// read reads whole batches and looks at their checksums, as brokers do. nil with nil
// error: there is nothing.
func (r *replica) read(from, upTo int64, max int) ([]byte, int64, error) {
	res, err := r.log.Read(from, upTo, max, func(n int) []byte { return make([]byte, n) })
	if err != nil {
		var corrupt *commitlog.CorruptError
		if errors.As(err, &corrupt) {
			r.damaged()
		}
		return nil, from, err
	}
	for data := res.Data; len(data) > 0; {
		batch, rest, err := record.NextBatch(data)
		if err == nil {
			_, err = record.Validate([][]byte{batch}, record.ValidateOptions{})
		}
		if err != nil {
			r.damaged()
			return nil, from, err
		}
		data = rest
	}
	return res.Data, res.NextOffset, nil
}

// damaged deals with a log that turned out to be damaged while it was read.
func (r *replica) damaged() {
	if r.condemned || r.gone {
		return
	}
	rec, ok := r.b.of.partitionAt(r.id, r.b.rev)
	others := false
	for _, b := range append(append([]int32{}, rec.ISR...), rec.ELR...) {
		others = others || b != r.b.id && !contains(rec.Barred, b)
	}
	r.w.count("damage found while reading")
	if !ok || !others {
		return
	}
	r.condemned = true
	r.b.disk.verdicts[r.id], r.verdict = partition.Corrupt, partition.Corrupt
	r.w.say("broker %d#%d finds its log of %s damaged", r.b.id, r.b.inc, r.w.name(r.id))
	r.step(partition.DiskOffline{})
	r.b.bad[r.id] = 0
}

func contains(set []int32, b int32) bool {
	for _, x := range set {
		if x == b {
			return true
		}
	}
	return false
}

// name is a partition's for the story.
func (w *world) name(id cluster.PartitionID) string {
	if p := w.part(id); p != nil {
		return fmt.Sprintf("%s-%d", p.topic.name, id.Number)
	}
	return "a partition of no topic"
}

// describe says what a batch is for the story.
func describe(data []byte) string {
	h, err := record.ParseHeader(data)
	if err != nil {
		return err.Error()
	}
	if h.ProducerID < 0 {
		return fmt.Sprintf("%d records", h.NumRecords)
	}
	return fmt.Sprintf("%d records of producer %d/%d from sequence %d", h.NumRecords, h.ProducerID, h.ProducerEpoch, h.BaseSequence)
}
