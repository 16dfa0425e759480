package commitlog

import "github.com/leat-io/leat/libs/record"

// fate is what becomes of a batch.
type fate int

const (
	asIs    fate = iota // it stays, byte for byte
	renewed             // some of its records go, or it gets a delete horizon
	emptied             // only its header stays, for its producer's or its epoch's sake
	gone                // nothing stays
)

// verdict is the fate of a batch. Whether each record stays is in cleaning.fates.
type verdict struct {
	fate      fate
	horizon   int64 // to be set, record.NoTimestamp for none
	tombstone int64 // the newest tombstone that goes, -1 for none
}

// judge decides what becomes of a batch.
//
// A batch that the map does not cover stays, and so does a control batch: what it
// says outlives the records it stood among. Tombstones that stay give their batch a
// horizon, once, at which they may go; by then everything older of their keys has
// long gone, since the pass that set the horizon removed it.
func (c *cleaning) judge(h *record.Header, batch []byte) (verdict, error) {
	v := verdict{horizon: record.NoTimestamp, tombstone: -1}
	if h.Attributes.Control() || h.BaseOffset > c.latest {
		return v, nil
	}
	last, known := c.last[h.ProducerID]
	mustStay := known && last == h.LastOffset() || c.firsts[h.BaseOffset]
	if h.NumRecords == 0 {
		if !mustStay {
			v.fate = gone
		} else {
			c.report.EmptyBatches++
		}
		return v, nil
	}
	kept, tombstones, err := c.judgeRecords(h, batch, &v)
	if err != nil {
		return v, err
	}
	switch {
	case kept == 0 && mustStay:
		v.fate = emptied
		c.report.EmptyBatches++
	case kept == 0:
		v.fate = gone
	case kept < int(h.NumRecords):
		v.fate = renewed
	}
	if tombstones {
		horizon := h.BaseTimestamp
		if !h.Attributes.HasDeleteHorizon() && h.LastOffset() <= c.latest {
			horizon = c.now + c.o.DeleteRetention.Milliseconds()
			v.horizon, v.fate = horizon, renewed
		} else if horizon <= c.now {
			horizon = c.now + heldDelay.Milliseconds()
		}
		if h.LastOffset() <= c.latest && (c.horizon == noHorizon || horizon < c.horizon) {
			c.horizon = max(horizon, 0)
		}
	}
	return v, nil
}

// judgeRecords decides the fate of each record and returns how many stay, and
// whether there are tombstones among them.
func (c *cleaning) judgeRecords(h *record.Header, batch []byte, v *verdict) (kept int, tombstones bool, err error) {
	if err := c.readKeys(batch); err != nil {
		return 0, false, err
	}
	expired := h.Attributes.HasDeleteHorizon() && h.BaseTimestamp <= c.now
	c.fates = c.fates[:0]
	for i := range c.keys {
		k := &c.keys[i]
		stays := true
		switch {
		case k.offset > c.latest: // nothing is known about its key
		case k.null:
			stays = false
			c.report.NullKeys++
		case k.offset < c.offsets.get(c.hashes[i]):
			stays = false
		case !k.tombstone:
		case expired && k.offset < c.keepFrom:
			stays = false
			c.report.Tombstones++
			v.tombstone = k.offset
		default:
			tombstones = true
		}
		if stays {
			kept++
		}
		c.fates = append(c.fates, stays)
	}
	c.report.RecordsRead += int64(len(c.keys))
	c.report.RecordsRemoved += int64(len(c.keys) - kept)
	return kept, tombstones, nil
}

// rewrite carries a verdict out. It returns the bytes that stay, nil for none.
func (c *cleaning) rewrite(batch []byte, v *verdict) ([]byte, error) {
	switch v.fate {
	case asIs:
		return batch, nil
	case gone:
		return nil, nil
	}
	i := -1
	out, err := c.rewriter.Rewrite(batch, v.horizon, func(*record.Record) bool {
		i++
		return c.fates[i]
	})
	return out.Batch, err
}

// findLandmarks notes which batches must stay, if only as a header. A producer's last
// one is where its sequence is found when no snapshot knows it (case 10). A leader
// epoch's first one is where a copy of this log learns of the epoch: a follower whose
// last records are of an epoch that its leader never heard of could not tell that from
// records that were lost. The oldest epoch needs none: nothing lies before it to be
// taken for a common end. What is appended later is newer, and needs nothing kept.
func (c *cleaning) findLandmarks() {
	c.l.mu.RLock()
	defer c.l.mu.RUnlock()
	c.firsts = make(map[int64]bool, len(c.l.epochs))
	for _, e := range c.l.epochs[min(1, len(c.l.epochs)):] {
		c.firsts[e.start] = true
	}
	c.last = make(map[int64]int64, len(c.l.producers.byID))
	for id, p := range c.l.producers.byID {
		if p.count > 0 {
			c.last[id] = p.latest().last
		}
	}
}
