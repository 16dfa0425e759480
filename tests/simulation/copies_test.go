package simulation

import (
	"bytes"
	"slices"

	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
)

// compareCopies compares the replicas below their high watermarks: byte by byte, or, of
// topics that are compacted, record by record with what is committed.
func (w *world) compareCopies() {
	for _, p := range w.order {
		if p.gone {
			continue
		}
		var first *replica
		var have []byte
		var base, end int64
		for _, b := range w.bs[1:] {
			r := b.get(p.id)
			if r == nil || r.log == nil || r.core == nil || b.disk.rotten[p.id] || r.core.Down() != partition.ReasonNone || !slices.Contains(p.record.ISR, b.id) {
				continue
			}
			if p.lossy && r.core.HighWatermark() < int64(len(p.truth)) {
				continue
			}
			from := max(r.log.StartOffset(), p.deleted)
			to := r.core.HighWatermark()
			if p.topic.clean.compact {
				r.compareCleaned(from, to)
				continue
			}
			var data []byte
			r.batchesOf(from, to, func(_ *record.Header, d []byte) { data = append(data, d...) })
			if first == nil {
				first, have, base, end = r, data, from, to
				continue
			}
			if from != base {
				continue
			}
			n := min(len(have), len(data))
			if end == to && len(have) != len(data) || !bytes.Equal(have[:n], data[:n]) {
				w.fail("DIVERGED", "brokers %d and %d differ below their high watermarks of %s (%d and %d)", first.b.id, b.id, w.name(p.id), end, to)
			}
		}
	}
}

// checkAcked looks for every acknowledged record on the leaders, at the end.
func (w *world) checkAcked() {
	for _, p := range w.order {
		if b := w.broker(p.record.Leader.ID); p.gone || p.topic.internal || p.lossy || b == nil || b.disk.rotten[p.id] {
			continue
		}
		for v, o := range p.acked {
			if at, ok := p.where[v]; (!ok || at != o) && !p.lossy && o >= p.deleted {
				w.fail("LOST", "value %d, acknowledged at %d of %s, is committed nowhere or at %d", v, o, w.name(p.id), at)
			}
			if o >= int64(len(p.truth)) {
				w.fail("LOST", "value %d, acknowledged at %d of %s, is beyond what is visible (%d)", v, o, w.name(p.id), len(p.truth))
			}
		}
	}
}

// compareCleaned compares a replica of a topic that is compacted with what is
// committed: each has cleaned as far as it has.
func (r *replica) compareCleaned(from, to int64) {
	p := r.p
	if p.lossy {
		return
	}
	wrong := r.differs(from, min(to, int64(len(p.truth))))
	kind := "DIVERGED"
	if wrong == "" {
		wrong, kind = r.lives(from, to), "RESURRECTED"
	}
	if wrong != "" {
		r.w.fail(kind, "broker %d#%d holds of %s, up to its high watermark %d, %s", r.b.id, r.b.inc, r.w.name(r.id), to, wrong)
	}
	r.w.count("compacted copy compared")
}
