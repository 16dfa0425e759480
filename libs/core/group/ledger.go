package group

import (
	"maps"
	"slices"
	"time"
	"unicode/utf8"
)

// Move is a partition that changes hands; empty names are nobody.
type Move struct {
	Part
	From, To string
}

// maxLedger is about the most bytes that one entry of the ledger takes; moves beyond
// it are counted and not kept.
const maxLedger = 15 << 10

// maxCause bounds what is told of a cause, in bytes.
const maxCause = 512

// gapsOf is how long partitions were without an owner since the last rebalance began.
type gapsOf struct{ longest, total time.Duration }

// moves lists what changes between two targets, in order.
func moves(before, after map[Part]string) []Move {
	var all []Move
	for p, from := range before {
		if to := after[p]; to != from {
			all = append(all, Move{p, from, to})
		}
	}
	for p, to := range after {
		if _, ok := before[p]; !ok {
			all = append(all, Move{p, "", to})
		}
	}
	slices.SortFunc(all, func(a, b Move) int { return compareParts(a.Part, b.Part) })
	return all
}

// cutMoves keeps as many moves as fit into an entry beside its cause.
func cutMoves(all []Move, cause string) []Move {
	const move, name = 40, 4
	left := maxLedger - len(cause)
	named := make(map[string]bool)
	for i, m := range all {
		left -= move
		for _, id := range []string{m.From, m.To} {
			if id != "" && !named[id] {
				named[id] = true
				left -= name + len(id)
			}
		}
		if left < 0 {
			return slices.Clone(all[:i])
		}
	}
	return all
}

// record notes a rebalance, or a reset, under the present group epoch. One that has
// not ended yet is written once more, with what is known of it.
func (s *State) record(now Now, g *group, cause string, moved []Move) {
	cause = cut(cause, maxCause)
	s.closeEntry(now, g, false)
	slot := int32(g.epoch % ledgerSlots)
	entry := LedgerValue{Epoch: g.epoch, Cause: cause, TimeMs: now.WallMs, Moved: int32(len(moved)), Moves: cutMoves(moved, cause)}
	g.ledger[slot] = entry
	s.write(ledgerKey(g.name, slot), entry)
	g.open, g.gapsNow = slot+1, gapsOf{}
}

// closeEntry ends the entry of the rebalance that goes on.
func (s *State) closeEntry(now Now, g *group, finished bool) {
	if g.open == 0 {
		return
	}
	slot := g.open - 1
	g.open = 0
	entry, ok := g.ledger[slot]
	if !ok || !finished && g.gapsNow == (gapsOf{}) {
		return
	}
	entry.LongestMs, entry.TotalMs = g.gapsNow.longest.Milliseconds(), g.gapsNow.total.Milliseconds()
	if finished {
		entry.FinishedMs = now.WallMs
	}
	g.ledger[slot] = entry
	s.write(ledgerKey(g.name, slot), entry)
}

// openEntry finds, after a load, the rebalance that had not ended.
func (g *group) openEntry() {
	for slot, v := range g.ledger {
		if v.Epoch == g.epoch && v.FinishedMs == 0 {
			g.open = slot + 1
			g.gapsNow = gapsOf{time.Duration(v.LongestMs) * time.Millisecond, time.Duration(v.TotalMs) * time.Millisecond}
		}
	}
}

// settled ends the entry of a rebalance once every member holds what it should.
func (s *State) settled(now Now, g *group) {
	if g.open != 0 && len(g.resets) == 0 && len(g.members) > 0 && g.status() == StatusStable {
		s.closeEntry(now, g, true)
	}
}

// gap notes since when a partition that somebody should hold is without an owner.
// An earlier time that is known already stays.
func (g *group) gap(p Part, since time.Duration) {
	if at, ok := g.gaps[p]; g.wanted[p] != "" && (!ok || since < at) {
		g.gaps[p] = since
	}
}

// confirm notes that the member has taken a tenure in, which ends the time without
// an owner.
func (g *group) confirm(now Now, p Part, h *holding) {
	h.confirmed = true
	since, ok := g.gaps[p]
	if !ok {
		return
	}
	delete(g.gaps, p)
	d := now.Mono - since
	g.gapsNow.longest = max(g.gapsNow.longest, d)
	g.gapsNow.total += d
}

// regap brings the times without an owner in line with a new target.
func (g *group) regap(now Now) {
	maps.DeleteFunc(g.gaps, func(p Part, _ time.Duration) bool { return g.wanted[p] == "" })
	for p := range g.wanted {
		if g.owner[p] == "" {
			g.gap(p, now.Mono)
		}
	}
}

// cut shortens text to at most n bytes, between characters.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}
