package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"sync"
	"time"
)

// keys is how many keys a producer has.
const keys = 11

// Key is the key of a producer's record.
func Key(producer string, number int) string { return fmt.Sprintf("%s:%d", producer, number%keys) }

// Value is the value of a producer's record.
func Value(producer string, number int) string { return fmt.Sprintf("%s-%d", producer, number) }

// Place is where a record is.
type Place struct {
	Partition int
	Offset    int64
}

// Record is a record at its place.
type Record struct {
	Place
	Key, Value string
	Epoch      int // leader epoch
}

// ack is what a producer was told of one record.
type ack struct {
	place   Place
	reason  string // of a failure
	unknown bool
	maybe   bool // stored, perhaps twice
}

// History is one run. Use New.
type History struct {
	mu        sync.Mutex
	producers map[string]*producer
	readers   map[string]*reader
	values    map[Place]string // what any reader saw there
	problems  []string
	more      int
}

type producer struct {
	acks      map[int]*ack
	mayRepeat bool
	good      int
	last      time.Time // of the last acknowledgement
	longest   time.Duration
}

type reader struct {
	next  map[int]int64
	count int
}

// New returns an empty history.
func New() *History {
	return &History{producers: map[string]*producer{}, readers: map[string]*reader{}, values: map[Place]string{}}
}

// maxProblems bounds what is kept.
const maxProblems = 30

func (h *History) problem(format string, args ...any) {
	if len(h.problems) >= maxProblems {
		h.more++
		return
	}
	h.problems = append(h.problems, fmt.Sprintf(format, args...))
}

// Problems lists what was found so far.
func (h *History) Problems() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := append([]string(nil), h.problems...)
	if h.more > 0 {
		list = append(list, fmt.Sprintf("and %d more", h.more))
	}
	return list
}

func (h *History) producer(name string) *producer {
	p := h.producers[name]
	if p == nil {
		p = &producer{acks: map[int]*ack{}}
		h.producers[name] = p
	}
	return p
}

// Acked notes that a record was stored at a place; maybeTwice if the producer was
// told that it may be there a second time.
func (h *History) Acked(name string, number int, at Place, maybeTwice bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.producer(name)
	h.answer(p, name, number, &ack{place: at, maybe: maybeTwice})
	p.good++
	now := time.Now()
	if !p.last.IsZero() {
		p.longest = max(p.longest, now.Sub(p.last))
	}
	p.last = now
}

// Failed notes that a record was not stored, or that nobody knows.
func (h *History) Failed(name string, number int, reason string, unknown bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer(h.producer(name), name, number, &ack{reason: reason, unknown: unknown})
}

func (h *History) answer(p *producer, name string, number int, a *ack) {
	if old := p.acks[number]; old != nil {
		h.problem("%s has a second answer: %+v after %+v", Value(name, number), *a, *old)
		return
	}
	p.acks[number] = a
}

// LongestGap is the longest time in which a producer got no acknowledgement since
// the last call; the time since the last one counts.
func (h *History) LongestGap(name string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.producer(name)
	gap := p.longest
	if !p.last.IsZero() {
		gap = max(gap, time.Since(p.last))
	}
	p.longest = 0
	return gap
}

// Count is how many records of a producer were acknowledged.
func (h *History) Count(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.producer(name).good
}

// Read is how many records a reader has got.
func (h *History) Read(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.readers[name]; r != nil {
		return r.count
	}
	return 0
}

// MayRepeat says that a producer's idempotence was lost with its gateway: records
// may be there twice if their outcome was unknown, or it was told so.
func (h *History) MayRepeat(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.producer(name).mayRepeat = true
}

// Failures counts a producer's failed records by reason.
func (h *History) Failures(name string) map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	counts := map[string]int{}
	for _, a := range h.producer(name).acks {
		switch {
		case a.unknown:
			counts["unknown "+a.reason]++
		case a.reason != "":
			counts[a.reason]++
		}
	}
	return counts
}

// Acks takes the lines of a producer's --acks-out.
func (h *History) Acks(name string) io.Writer {
	return &lines{each: func(line []byte) {
		var a struct {
			Number    int     `json:"number"`
			Partition *int    `json:"partition"`
			Offset    *int64  `json:"offset"`
			Error     *string `json:"error"`
			Unknown   *string `json:"unknown"`
			Maybe     bool    `json:"maybe_duplicated"`
		}
		err := json.Unmarshal(line, &a)
		switch {
		case err == nil && a.Unknown != nil:
			h.Failed(name, a.Number, *a.Unknown, true)
		case err == nil && a.Error != nil:
			h.Failed(name, a.Number, *a.Error, false)
		case err == nil && a.Partition != nil && a.Offset != nil:
			h.Acked(name, a.Number, Place{*a.Partition, *a.Offset}, a.Maybe)
		default:
			h.mu.Lock()
			h.problem("producer %s wrote %q: %v", name, line, err)
			h.mu.Unlock()
		}
	}}
}

// Reader takes the lines of a consumer that reads everything from the beginning,
// without a group: each partition from offset 0, without a gap.
func (h *History) Reader(name string) io.Writer {
	return &lines{each: func(line []byte) {
		r, err := ParseRecord(line)
		if err != nil {
			h.mu.Lock()
			h.problem("reader %s wrote %q: %v", name, line, err)
			h.mu.Unlock()
			return
		}
		h.Seen(name, r)
	}}
}

// Seen notes that a reader was given a record.
func (h *History) Seen(name string, r Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rd := h.readers[name]
	if rd == nil {
		rd = &reader{next: map[int]int64{}}
		h.readers[name] = rd
	}
	rd.count++
	if want := rd.next[r.Partition]; r.Offset != want {
		h.problem("reader %s was given offset %d of partition %d, want %d", name, r.Offset, r.Partition, want)
	}
	rd.next[r.Partition] = r.Offset + 1
	if old, seen := h.values[r.Place]; seen && old != r.Value {
		h.problem("%+v held %q and later %q (reader %s)", r.Place, old, r.Value, name)
	}
	h.values[r.Place] = r.Value
}

// ParseRecord reads a line of `leat consume -o json`.
func ParseRecord(line []byte) (Record, error) {
	var r struct {
		Partition int     `json:"partition"`
		Offset    *int64  `json:"offset"`
		Key       *string `json:"key"`
		Value     *string `json:"value"`
		Epoch     int     `json:"leader_epoch"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return Record{}, err
	}
	if r.Offset == nil || r.Value == nil || r.Key == nil {
		return Record{}, fmt.Errorf("no offset, key or value")
	}
	return Record{Place: Place{r.Partition, *r.Offset}, Key: *r.Key, Value: *r.Value, Epoch: r.Epoch}, nil
}

// Parse reads the whole output of `leat consume -o json`.
func Parse(out string) ([]Record, error) {
	var records []Record
	var failed error
	l := &lines{each: func(line []byte) {
		r, err := ParseRecord(line)
		if err != nil && failed == nil {
			failed = fmt.Errorf("%q: %w", line, err)
		}
		records = append(records, r)
	}}
	_, _ = l.Write([]byte(out)) // it never fails
	return records, failed
}

// Summary tells how much there was, for logs.
func (h *History) Summary() string {
	h.mu.Lock()
	var names []string
	for name := range h.producers {
		names = append(names, name)
	}
	h.mu.Unlock()
	sort.Strings(names)
	var b bytes.Buffer
	for _, name := range names {
		fmt.Fprintf(&b, "%s: %d acknowledged, failed %v; ", name, h.Count(name), h.Failures(name))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, r := range h.readers {
		fmt.Fprintf(&b, "%s read %d; ", name, r.count)
	}
	return b.String()
}

// lines hands whole lines on as they are written.
type lines struct {
	mu      sync.Mutex
	each    func(line []byte)
	partial []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		cut := bytes.IndexByte(l.partial, '\n')
		if cut < 0 {
			return len(p), nil
		}
		l.each(l.partial[:cut])
		l.partial = l.partial[cut+1:]
	}
}
