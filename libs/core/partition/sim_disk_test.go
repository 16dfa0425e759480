package partition

import (
	"fmt"
	"slices"
)

// entry is one record: the leader epoch it was appended in and its value, which no
// other record has.
type entry struct {
	epoch int32
	value int
}

func (e entry) String() string { return fmt.Sprintf("v%de%d", e.value, e.epoch) }

// simDisk is a log and what else a replica keeps on its disk.
type simDisk struct {
	base    int64 // offset of entries[0]
	entries []entry
	start   int64
	durable int64
	epochs  []EpochStart
	absent  bool // wiped, and not made again

	hw      int64 // high watermark as noted in memory
	hwSaved int64 // its checkpoint
	verdict Verdict
	aside   bool // a bad copy is kept beside the log
}

func (d *simDisk) end() int64 { return d.base + int64(len(d.entries)) }

// at is the record at an offset; ok is false where there is none.
func (d *simDisk) at(offset int64) (e entry, ok bool) {
	if offset < max(d.base, d.start) || offset >= d.end() {
		return e, false
	}
	return d.entries[offset-d.base], true
}

// find is the offset of a value, -1 without it.
func (d *simDisk) find(value int) int64 {
	for i, e := range d.entries {
		if e.value == value {
			return d.base + int64(i)
		}
	}
	return -1
}

func (d *simDisk) append(es ...entry) (added []EpochStart) {
	for _, e := range es {
		if n := len(d.epochs); n == 0 || d.epochs[n-1].Epoch < e.epoch {
			d.epochs = append(d.epochs, EpochStart{Epoch: e.epoch, Start: d.end()})
			added = append(added, d.epochs[n])
		}
		d.entries = append(d.entries, e)
	}
	return added
}

func (d *simDisk) lastEpoch() int32 {
	if len(d.epochs) == 0 {
		return -1
	}
	return d.epochs[len(d.epochs)-1].Epoch
}

// cut takes everything from an offset on away.
func (d *simDisk) cut(to int64) {
	if to >= d.end() {
		return
	}
	d.entries = slices.Clone(d.entries[:max(to-d.base, 0)])
	d.durable = min(d.durable, d.end())
	d.hw, d.hwSaved = min(d.hw, to), min(d.hwSaved, to)
	for len(d.epochs) > 0 && d.epochs[len(d.epochs)-1].Start >= to {
		d.epochs = d.epochs[:len(d.epochs)-1]
	}
}

// reset lets the log begin anew.
func (d *simDisk) reset(to int64) {
	*d = simDisk{base: to, start: to, durable: to, hw: to, hwSaved: to, verdict: d.verdict, aside: d.aside}
}

// moveStart lets the log begin later.
func (d *simDisk) moveStart(to int64) {
	d.start = max(d.start, to)
	for len(d.epochs) > 1 && d.epochs[1].Start <= d.start {
		d.epochs = d.epochs[1:]
	}
}

func (d *simDisk) String() string {
	return fmt.Sprintf("%d:%v start=%d durable=%d hw=%d/%d", d.base, d.entries, d.start, d.durable, d.hw, d.hwSaved)
}
