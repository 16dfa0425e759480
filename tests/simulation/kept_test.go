package simulation

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/record"
)

// cleaning is how a topic's old records go.
type cleaning struct {
	compact        bool
	deleteRetain   time.Duration // how long compaction leaves a tombstone
	retain         time.Duration // retention.ms; 0: none by age
	retainBytes    int64         // retention.bytes; 0: none by size
	segmentAge     time.Duration
	minDirty       float64
	minLag, maxLag time.Duration
}

// kept is a committed record of a topic that is compacted.
type kept struct {
	sum  uint64 // of its timestamp, key, value and headers
	key  string
	tomb bool
	at   time.Duration // when it was committed
}

// keeps takes the records of a committed batch on the books, where they may go by key.
func (p *part) keeps(h *record.Header, records []record.Record) {
	if !p.topic.clean.compact {
		return
	}
	for i := range records {
		rec := &records[i]
		o := h.BaseOffset + int64(i)
		p.kept[o] = kept{sumOf(rec), string(rec.Key), rec.Value == nil, p.w.now}
		p.newest[string(rec.Key)] = max(o, p.newest[string(rec.Key)])
	}
}

func sumOf(r *record.Record) uint64 {
	f := fnv.New64a()
	_ = binary.Write(f, binary.BigEndian, r.Timestamp)
	for _, b := range [][]byte{r.Key, r.Value} {
		_ = binary.Write(f, binary.BigEndian, int64(len(b)))
		_, _ = f.Write(b)
	}
	for _, h := range r.Headers {
		_, _ = f.Write(h.Key)
		_, _ = f.Write(h.Value)
	}
	return f.Sum64()
}

// mayBeGone reports whether compaction may have taken a committed record: there is a
// newer one of its key, or it is a tombstone that was readable for long enough.
func (p *part) mayBeGone(o int64) bool {
	k, ok := p.kept[o]
	if !ok {
		return false
	}
	// The log counts in milliseconds.
	return p.newest[k.key] > o || k.tomb && p.w.now+time.Millisecond >= k.at+p.topic.clean.deleteRetain
}

// firstDue is the first offset of a range which must be in every log that reaches so
// far; to where there is none.
func (p *part) firstDue(from, to int64) int64 {
	for o := from; o < to; o++ {
		if !p.mayBeGone(o) {
			return o
		}
	}
	return to
}

// differs compares what a log holds of a range with what is committed there, and says
// what is wrong; "" if nothing is.
func (r *replica) differs(from, to int64) (wrong string) {
	p := r.p
	at := from
	hole := func(upTo int64) {
		if o := p.firstDue(at, min(upTo, to)); wrong == "" && at < upTo && o < min(upTo, to) {
			wrong = fmt.Sprintf("nothing at %d, where %+v is committed", o, p.truth[o])
		}
	}
	r.batchesOf(from, to, func(h *record.Header, data []byte) {
		hole(h.BaseOffset)
		if wrong == "" {
			wrong = p.matches(h, data, max(h.BaseOffset, from), min(h.NextOffset(), to))
		}
		at = max(at, h.NextOffset())
	})
	if at < to && !r.straddles(at, to) {
		hole(to)
	}
	return wrong
}

// matches compares a batch of a log with what is committed in a range of offsets.
func (p *part) matches(h *record.Header, data []byte, from, to int64) string {
	if !p.topic.clean.compact {
		for o := from; o < to; o++ {
			if e := (entry{h.CRC, h.BaseOffset, h.PartitionLeaderEpoch}); p.truth[o] != e {
				return fmt.Sprintf("%+v at %d, where %+v is committed", e, o, p.truth[o])
			}
		}
		return ""
	}
	records, err := record.Decode(data, 1<<20)
	if err != nil {
		return fmt.Sprintf("a batch at %d that cannot be decoded: %v", h.BaseOffset, err)
	}
	at := from
	for i := range records {
		rec := &records[i]
		if rec.Offset < from || rec.Offset >= to {
			continue
		}
		k, ok := p.kept[rec.Offset]
		t := p.truth[rec.Offset]
		if !ok || k.sum != sumOf(rec) || t.base != h.BaseOffset || t.epoch != h.PartitionLeaderEpoch {
			return fmt.Sprintf("another record at %d (of the batch at %d, epoch %d), where one of %+v is committed", rec.Offset, h.BaseOffset, h.PartitionLeaderEpoch, t)
		}
		if o := p.firstDue(at, rec.Offset); o < rec.Offset {
			return fmt.Sprintf("no record at %d in the batch at %d, where key %s has its newest", o, h.BaseOffset, p.kept[o].key)
		}
		at = rec.Offset + 1
	}
	if o := p.firstDue(at, to); o < to {
		return fmt.Sprintf("no record at %d in the batch at %d, where key %s has its newest", o, h.BaseOffset, p.kept[o].key)
	}
	return ""
}

// lives looks for keys that were deleted and live on in a range of a log that lacks the
// tombstone. Records below the range are of no account: where a log begins within a batch
// they are there, and nobody reads them.
func (r *replica) lives(from, to int64) (wrong string) {
	p := r.p
	last := map[string]int64{}
	r.batchesOf(from, to, func(h *record.Header, data []byte) {
		records, _ := record.Decode(data, 1<<20)
		for i := range records {
			if records[i].Offset >= from {
				last[string(records[i].Key)] = records[i].Offset
			}
		}
	})
	keys := make([]string, 0, len(last))
	for k := range last {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if n := p.newest[k]; last[k] < n && n < to {
			return fmt.Sprintf("key %s lives at %d, and its newest record, at %d (a tombstone: %v), is not there", k, last[k], n, p.kept[n].tomb)
		}
	}
	return ""
}

// forgetKept lets go of what was committed from an offset on.
func (p *part) forgetKept(keep int64) {
	p.newest = map[string]int64{}
	for o, k := range p.kept {
		if o >= keep {
			delete(p.kept, o)
		} else if n, ok := p.newest[k.key]; !ok || o > n {
			p.newest[k.key] = o
		}
	}
}
