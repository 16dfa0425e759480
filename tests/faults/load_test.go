package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/owners"
	"github.com/leat-io/leat/tests/internal/rig"
)

// load is the workload on one topic: producers of the client library and, one for
// each gateway, of the command; readers that follow everything; a group.
type load struct {
	t       *testing.T
	r       *rig.Rig
	topic   string
	parts   int
	rate    int
	h       *records
	group   *owners.Owners
	client  *client.Client // of readers, and of questions
	id      *client.Topic
	ctx     context.Context
	cancel  context.CancelFunc
	wait    sync.WaitGroup // readers and members
	senders sync.WaitGroup
	halt    context.CancelFunc // ends sending
	sending context.Context
	sources []source
	members *members
	lost    error // why a producer ended before its time
	mu      sync.Mutex
	readTo  []int64 // by partition: one past what the readers' client was given
}

// source is one producer: its index in the history, and through which gateway it
// goes, if any.
type source struct {
	name    string
	index   int
	gateway string
	finish  func() error // waits for all outcomes
}

const deliveryTimeout = 4 * time.Minute

func startLoad(t *testing.T, r *rig.Rig, topic string, parts, rate int) *load {
	t.Helper()
	l := &load{t: t, r: r, topic: topic, parts: parts, rate: rate, h: newRecords(parts), readTo: make([]int64, parts)}
	l.group = newOwners(l.h, parts)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.sending, l.halt = context.WithCancel(l.ctx)
	l.client = l.newClient("readers")
	var err error
	if l.id, err = l.client.Metadata().Topic(l.ctx, topic); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	for n := range 2 {
		l.startDirect(fmt.Sprintf("d%d", n+1))
	}
	for n, name := range r.Names(rig.Gateway) {
		l.startCommand(fmt.Sprintf("g%d", n+1), name)
	}
	l.wait.Go(func() { l.follow("the leaders' reader", nil) })
	one := int32(1)
	l.wait.Go(func() { l.follow("the reader of broker 1", &one) })
	l.wait.Go(l.watchEnds)
	l.members = startMembers(l, "faults")
	return l
}

func (l *load) newClient(id string) *client.Client {
	l.t.Helper()
	var bootstrap []string
	for _, name := range l.r.Names(rig.Broker) {
		bootstrap = append(bootstrap, l.r.Addr(name))
	}
	c, err := client.New(client.Config{Bootstrap: bootstrap, ClientID: id, MetadataMaxAge: 2 * time.Second})
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// startDirect starts a producer of the client library.
func (l *load) startDirect(name string) {
	l.t.Helper()
	c := l.newClient(name)
	p, err := c.NewProducer(client.ProducerConfig{DeliveryTimeout: deliveryTimeout})
	if err != nil {
		l.t.Fatal(err)
	}
	s := source{name: name, index: l.h.add(name, false)}
	s.finish = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), deliveryTimeout+30*time.Second)
		defer cancel()
		return p.Flush(ctx)
	}
	l.sources = append(l.sources, s)
	l.senders.Go(func() {
		l.pace(func() bool {
			number := l.h.sending(s.index)
			err := p.Send(l.sending, client.Record{Topic: l.topic, Key: []byte(key(name, number)), Value: []byte(value(name, number))},
				func(res client.Result) { l.note(s.index, number, res) })
			if err == nil {
				return true
			}
			l.h.unsent(s.index)
			if typed := rpc.FromError(err); l.sending.Err() != nil || rpc.Retryable(typed) {
				return l.sending.Err() == nil
			}
			l.fail(fmt.Errorf("producer %s: %w", name, err))
			return false
		})
	})
	l.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.Close(ctx) // what has no outcome by now has been told of
		_ = c.Close()
	})
}

func (l *load) note(index, number int, res client.Result) {
	if res.Err == nil {
		v := stored
		if res.MaybeDuplicated {
			v = storedMaybeTwice
		}
		l.h.answered(index, number, v, int(res.Partition), res.Offset, "")
		return
	}
	typed := rpc.FromError(res.Err)
	v := refused
	if typed.Outcome == typev1.Outcome_OUTCOME_UNKNOWN {
		v = unknownOutcome
	}
	l.h.answered(index, number, v, -1, -1, typed.Reason.String())
}

// pace calls send at the rate until it returns false or sending ends. Time that was
// lost is not made up for.
func (l *load) pace(send func() bool) {
	tick := time.NewTicker(time.Second / time.Duration(l.rate))
	defer tick.Stop()
	for {
		select {
		case <-l.sending.Done():
			return
		case <-tick.C:
		}
		if !send() {
			return
		}
	}
}

// startCommand starts `leat produce` through one gateway.
func (l *load) startCommand(name, gateway string) {
	l.t.Helper()
	s := source{name: name, index: l.h.add(name, true), gateway: gateway}
	in, w := io.Pipe()
	acks := &ackLines{l: l, index: s.index}
	command := l.r.Run(in, acks, "produce", l.topic, "--gateway", l.r.Addr(gateway), "--input", "json", "--acks-out", "-",
		"--delivery-timeout", deliveryTimeout.String())
	s.finish = func() error {
		deadline := time.NewTimer(deliveryTimeout + 30*time.Second)
		defer deadline.Stop()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for command.Running() {
			select {
			case <-tick.C:
			case <-deadline.C:
				return fmt.Errorf("leat produce (%s) does not end: %s", name, command.Said())
			}
		}
		return nil
	}
	l.sources = append(l.sources, s)
	// A command that has ended reads no more, and its sender would wait for ever.
	context.AfterFunc(l.ctx, func() { _ = in.CloseWithError(context.Canceled) })
	l.senders.Go(func() {
		defer w.Close()
		l.pace(func() bool {
			number := l.h.sending(s.index)
			if _, err := fmt.Fprintf(w, "{\"key\":%q,\"value\":%q}\n", key(name, number), value(name, number)); err != nil {
				l.h.unsent(s.index)
				if l.ctx.Err() != nil {
					return false
				}
				l.fail(fmt.Errorf("leat produce (%s) took no more input: %w: %s", name, err, command.Said()))
				return false
			}
			return true
		})
	})
}

// ackLines takes the lines of --acks-out.
type ackLines struct {
	l       *load
	index   int
	partial []byte
}

func (a *ackLines) Write(p []byte) (int, error) {
	a.partial = append(a.partial, p...)
	for {
		cut := bytes.IndexByte(a.partial, '\n')
		if cut < 0 {
			return len(p), nil
		}
		a.line(a.partial[:cut])
		a.partial = a.partial[cut+1:]
	}
}

func (a *ackLines) line(line []byte) {
	var m struct {
		Number    int     `json:"number"`
		Partition *int    `json:"partition"`
		Offset    *int64  `json:"offset"`
		Error     *string `json:"error"`
		Unknown   *string `json:"unknown"`
		Maybe     bool    `json:"maybe_duplicated"`
	}
	err := json.Unmarshal(line, &m)
	h := a.l.h
	switch {
	case err == nil && m.Unknown != nil:
		h.answered(a.index, m.Number, unknownOutcome, -1, -1, *m.Unknown)
	case err == nil && m.Error != nil:
		h.answered(a.index, m.Number, refused, -1, -1, *m.Error)
	case err == nil && m.Partition != nil && m.Offset != nil && m.Maybe:
		h.answered(a.index, m.Number, storedMaybeTwice, *m.Partition, *m.Offset, "")
	case err == nil && m.Partition != nil && m.Offset != nil:
		h.answered(a.index, m.Number, stored, *m.Partition, *m.Offset, "")
	default:
		h.problem("leat produce wrote %q: %v", line, err)
	}
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = errors.Join(l.lost, err)
	l.h.problem("%v", err)
}

func (l *load) sleep(d time.Duration) bool {
	select {
	case <-l.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// progressOf is how far everybody has come.
type progressOf struct {
	acked         []int // by producer
	stored        []int // by partition
	read, grouped int
}

func (l *load) progress() progressOf {
	var p progressOf
	for _, s := range l.sources {
		p.acked = append(p.acked, l.h.acked(s.index))
	}
	l.h.mu.Lock()
	p.read, p.stored = l.h.read, slices.Clone(l.h.stored)
	l.h.mu.Unlock()
	p.grouped = l.group.Counts().Delivered
	return p
}

// stuck names who has not got on since; "": nobody. Producers through a gateway that
// is hit do not count.
func (l *load) stuck(since progressOf, hit []string) string {
	now := l.progress()
	for i, s := range l.sources {
		if s.gateway != "" && contains(hit, s.gateway) {
			continue
		}
		if now.acked[i] < since.acked[i]+10 {
			return fmt.Sprintf("producer %s (%d acknowledged)", s.name, now.acked[i])
		}
	}
	for n := range now.stored {
		if now.stored[n] < since.stored[n]+3 {
			return fmt.Sprintf("partition %d (%d acknowledged)", n, now.stored[n])
		}
	}
	if now.read < since.read+10 {
		return fmt.Sprintf("the readers (%d read)", now.read)
	}
	if now.grouped < since.grouped+10 {
		return fmt.Sprintf("the group (%d given)", now.grouped)
	}
	return ""
}

// finish ends sending, waits for all outcomes and until readers and group have
// everything, reads the whole log and checks the history.
func (l *load) finish() {
	l.halt()
	l.senders.Wait()
	for _, s := range l.sources {
		if err := s.finish(); err != nil {
			l.fail(err)
		}
		if n := l.h.waiting(s.index); n > 0 {
			l.h.problem("producer %s: %d records have no outcome", s.name, n)
		}
	}
	log, err := l.readAll()
	if err != nil {
		l.h.problem("reading the whole log: %v", err)
		return
	}
	if behind := l.awaitReaders(log); behind != "" {
		l.h.problem("%s", behind)
	}
	l.cancel()
	l.wait.Wait()
	l.h.check(log)
}

func (l *load) close() {
	l.cancel()
	l.senders.Wait()
	l.wait.Wait()
	if err := l.client.Close(); err != nil {
		l.t.Error(err)
	}
}
