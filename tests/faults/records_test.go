package faults

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// recordID names a record: which producer, and its number there, from 1. 0 is none.
type recordID uint64

func (id recordID) producer() int { return int(id >> 40) }
func (id recordID) number() int   { return int(id & (1<<40 - 1)) }

func idOf(producer, number int) recordID { return recordID(producer)<<40 | recordID(number) }

// verdict is what a producer was told of a record.
type verdict uint8

const (
	unanswered verdict = iota
	stored
	storedMaybeTwice
	refused
	unknownOutcome
)

// answer is one producer's news of one record.
type answer struct {
	offset    int64
	sent      time.Duration // since the start
	partition int32
	verdict   verdict
}

// producer is what one producer did.
type producer struct {
	name string
	// mayRepeat: its idempotence goes with its gateway, so records of unknown outcome
	// may be there twice.
	mayRepeat bool
	answers   []answer // by number
	acked     int
	failures  map[string]int
}

// records is the history of a run. It is safe for concurrent use.
type records struct {
	mu        sync.Mutex
	began     time.Time
	producers []*producer
	seen      [][]recordID // by partition and offset: what anybody was given there
	read      int
	highest   []int64 // by partition: one past what anybody read or was told is stored
	stored    []int   // by partition: records acknowledged
	problems  []string
	more      int
	seconds   []second
}

// second is what one second saw.
type second struct {
	Acked, Refused, Unknown, Read, Grouped int
	latencies                              [latencyBuckets]int32
	slowest                                time.Duration
}

// latencyBuckets grow by half from a millisecond on: the last one is above a minute.
const latencyBuckets = 30

func bucketOf(d time.Duration) int {
	limit := time.Millisecond
	for i := range latencyBuckets - 1 {
		if d < limit {
			return i
		}
		limit += limit / 2
	}
	return latencyBuckets - 1
}

// quantile is an upper bound of a share of the latencies; 0 without any.
func (s *second) quantile(q float64) time.Duration {
	total := int32(0)
	for _, n := range s.latencies {
		total += n
	}
	if total == 0 {
		return 0
	}
	limit, sum := time.Millisecond, int32(0)
	for i, n := range s.latencies {
		sum += n
		if float64(sum) >= q*float64(total) || i == latencyBuckets-1 {
			return min(limit, s.slowest)
		}
		limit += limit / 2
	}
	return s.slowest
}

func newRecords(partitions int) *records {
	return &records{began: time.Now(), seen: make([][]recordID, partitions), highest: make([]int64, partitions), stored: make([]int, partitions)}
}

// add makes a producer and returns its index.
func (h *records) add(name string, mayRepeat bool) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.producers = append(h.producers, &producer{name: name, mayRepeat: mayRepeat, answers: make([]answer, 1), failures: map[string]int{}})
	return len(h.producers) - 1
}

const maxProblems = 40

func (h *records) problem(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.problemLocked(format, args...)
}

func (h *records) problemLocked(format string, args ...any) {
	if len(h.problems) >= maxProblems {
		h.more++
		return
	}
	h.problems = append(h.problems, fmt.Sprintf("%7.1fs  ", time.Since(h.began).Seconds())+fmt.Sprintf(format, args...))
}

// found lists the problems.
func (h *records) found() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := slices.Clone(h.problems)
	if h.more > 0 {
		list = append(list, fmt.Sprintf("and %d more", h.more))
	}
	return list
}

// now is the present second.
func (h *records) now() *second {
	n := int(time.Since(h.began) / time.Second)
	for len(h.seconds) <= n {
		h.seconds = append(h.seconds, second{})
	}
	return &h.seconds[n]
}

// sending notes that a producer is about to send its next record, and returns its
// number.
func (h *records) sending(p int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	pr := h.producers[p]
	pr.answers = append(pr.answers, answer{sent: time.Since(h.began)})
	return len(pr.answers) - 1
}

// unsent takes back the last sending: the record was not taken in.
func (h *records) unsent(p int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	pr := h.producers[p]
	pr.answers = pr.answers[:len(pr.answers)-1]
}

// answered notes what a producer was told.
func (h *records) answered(p, number int, v verdict, partition int, offset int64, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	pr := h.producers[p]
	if number < 1 || number >= len(pr.answers) {
		h.problemLocked("%s was answered about record %d, which it did not send", pr.name, number)
		return
	}
	a := &pr.answers[number]
	if a.verdict != unanswered {
		h.problemLocked("%s-%d has a second answer", pr.name, number)
		return
	}
	s := h.now()
	took := time.Since(h.began) - a.sent
	a.verdict, a.partition, a.offset = v, int32(partition), offset
	switch v {
	case stored, storedMaybeTwice:
		pr.acked++
		s.Acked++
		if partition >= 0 && partition < len(h.stored) {
			h.stored[partition]++
		}
		s.latencies[bucketOf(took)]++
		s.slowest = max(s.slowest, took)
		h.showLocked("the answer to "+pr.name, partition, offset, idOf(p, number))
	case refused:
		s.Refused++
		pr.failures["not done: "+reason]++
	default:
		s.Unknown++
		pr.failures["unknown: "+reason]++
	}
}

// show notes that somebody was given a record, or told of its place.
func (h *records) show(who string, partition int, offset int64, id recordID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.read++
	h.now().Read++
	h.showLocked(who, partition, offset, id)
}

func (h *records) showLocked(who string, partition int, offset int64, id recordID) {
	if partition < 0 || partition >= len(h.seen) || offset < 0 || offset > 1<<32 {
		h.problemLocked("%s named partition %d offset %d", who, partition, offset)
		return
	}
	seen := h.seen[partition]
	if int64(len(seen)) <= offset {
		seen = slices.Grow(seen, int(offset)+1-len(seen))[:offset+1]
		h.seen[partition] = seen
	}
	if old := seen[offset]; old != 0 && old != id {
		h.problemLocked("partition %d offset %d showed %s and, to %s, %s", partition, offset, h.nameLocked(old), who, h.nameLocked(id))
		return
	}
	seen[offset] = id
	h.highest[partition] = max(h.highest[partition], offset+1)
}

// shown is one past the highest offset of each partition that anybody knows of.
func (h *records) shown() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.highest)
}

// grouped notes that a member of a group was given records.
func (h *records) grouped(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now().Grouped += n
}

func (h *records) nameLocked(id recordID) string {
	if id == 0 || id.producer() >= len(h.producers) {
		return "nothing"
	}
	return fmt.Sprintf("%s-%d", h.producers[id.producer()].name, id.number())
}

// acked is how many records of a producer were acknowledged.
func (h *records) acked(p int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.producers[p].acked
}

// total counts all acknowledged records.
func (h *records) total() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, p := range h.producers {
		n += p.acked
	}
	return n
}

// waiting counts the records of a producer that have no answer.
func (h *records) waiting(p int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, a := range h.producers[p].answers[1:] {
		if a.verdict == unanswered {
			n++
		}
	}
	return n
}

// keys is how many keys a producer has.
const keys = 31

func key(name string, number int) string { return fmt.Sprintf("%s:%d", name, number%keys) }

// padding makes records about as large as a short line of a log.
var padding = strings.Repeat("leat ", 12)

func value(name string, number int) string { return fmt.Sprintf("%s-%d %s", name, number, padding) }

// parse finds out which record a value belongs to; 0: none.
func (h *records) parse(v string) recordID {
	name, rest, _ := strings.Cut(v, "-")
	digits, pad, _ := strings.Cut(rest, " ")
	number, err := strconv.Atoi(digits)
	if err != nil || number < 1 || pad != padding {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, p := range h.producers {
		if p.name == name {
			return idOf(i, number)
		}
	}
	return 0
}

// check compares the history with the whole log: for each partition, by offset.
func (h *records) check(log [][]recordID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checkOrder(log)
	for p, seen := range h.seen {
		for offset, id := range seen {
			if id != 0 && (offset >= len(log[p]) || log[p][offset] != id) {
				now := recordID(0)
				if offset < len(log[p]) {
					now = log[p][offset]
				}
				h.problemLocked("partition %d offset %d showed %s and holds %s in the end", p, offset, h.nameLocked(id), h.nameLocked(now))
			}
		}
	}
	h.checkAnswers(log)
}

// checkOrder looks for records that nobody sent, that are there twice, and that are
// out of order.
func (h *records) checkOrder(log [][]recordID) {
	times := make([][]uint8, len(h.producers))
	for i, p := range h.producers {
		times[i] = make([]uint8, len(p.answers))
	}
	for part, ids := range log {
		last := map[string]int{} // by producer or, where its gateway may repeat, by key
		for offset, id := range ids {
			if id == 0 || id.producer() >= len(h.producers) || id.number() >= len(h.producers[id.producer()].answers) {
				h.problemLocked("partition %d offset %d holds what nobody sent", part, offset)
				continue
			}
			p, number := h.producers[id.producer()], id.number()
			n := &times[id.producer()][number]
			*n++
			if *n > 1 {
				if v := p.answers[number].verdict; !p.mayRepeat || v == stored {
					h.problemLocked("%s is there %d times, last at partition %d offset %d", h.nameLocked(id), *n, part, offset)
				}
				continue
			}
			lane := p.name
			if p.mayRepeat {
				lane = key(p.name, number)
			}
			if number <= last[lane] {
				h.problemLocked("partition %d offset %d: %s comes after number %d", part, offset, h.nameLocked(id), last[lane])
			}
			last[lane] = number
		}
	}
	for i, p := range h.producers {
		for number := 1; number < len(p.answers); number++ {
			if p.answers[number].verdict == refused && times[i][number] > 0 {
				h.problemLocked("%s failed, not done, and is in the log", h.nameLocked(idOf(i, number)))
			}
		}
	}
}

func (h *records) checkAnswers(log [][]recordID) {
	for i, p := range h.producers {
		for number := 1; number < len(p.answers); number++ {
			a := &p.answers[number]
			if a.verdict != stored && a.verdict != storedMaybeTwice {
				continue
			}
			at := log[a.partition]
			if a.offset >= int64(len(at)) || at[a.offset] != idOf(i, number) {
				h.problemLocked("acknowledged %s is not at partition %d offset %d, where it was said to be", h.nameLocked(idOf(i, number)), a.partition, a.offset)
			}
		}
	}
}
