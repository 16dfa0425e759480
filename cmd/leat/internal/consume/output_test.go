package consume

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// pipe is an output that takes nothing while it is blocked.
type pipe struct {
	mu   sync.Mutex
	gate chan struct{} // closed: it takes everything
	text strings.Builder
}

func newPipe() *pipe { return &pipe{gate: make(chan struct{})} }

func (p *pipe) block() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
}

func (p *pipe) read() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.gate)
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	<-gate
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *pipe) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// gateway is one that tests lead by the hand.
type gateway struct {
	t       *testing.T
	slow    bool // does not answer opens by itself
	out     *pipe
	mu      sync.Mutex
	streams []*stream
	commits []int64 // of partition 0, in order
}

type stream struct {
	grpc.BidiStreamingClient[gatewayv1.ConsumeRequest, gatewayv1.ConsumeResponse]
	ctx     context.Context
	g       *gateway
	answers chan event
	told
}

// told is what a stream was told so far.
type told struct {
	open    *gatewayv1.ConsumeOpen
	credit  int64
	pings   int
	revoked bool
	left    bool
}

func (s *stream) sofar() told {
	synctest.Wait()
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return s.told
}

func (g *gateway) Consume(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[gatewayv1.ConsumeRequest, gatewayv1.ConsumeResponse], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &stream{ctx: ctx, g: g, answers: make(chan event, 100)}
	g.streams = append(g.streams, s)
	return s, nil
}

func (s *stream) Recv() (*gatewayv1.ConsumeResponse, error) {
	select {
	case a := <-s.answers:
		return a.response, a.err
	case <-s.ctx.Done():
		return nil, rpc.FromError(s.ctx.Err())
	}
}

func (s *stream) Send(m *gatewayv1.ConsumeRequest) error {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	switch m := m.GetMessage().(type) {
	case *gatewayv1.ConsumeRequest_Open:
		s.open, s.credit = m.Open, m.Open.GetCreditBytes()
		if !s.g.slow {
			s.sayOpened()
		}
	case *gatewayv1.ConsumeRequest_Credit:
		s.credit += m.Credit.GetBytes()
	case *gatewayv1.ConsumeRequest_Ping:
		s.pings++
		s.say(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Pong{Pong: &gatewayv1.ConsumePong{PingId: m.Ping.GetPingId()}}})
	case *gatewayv1.ConsumeRequest_Commit:
		for _, p := range m.Commit.GetPositions() {
			s.g.commits = append(s.g.commits, p.GetNextOffset())
			if printed := int64(len(s.g.out.String())); p.GetNextOffset() > printed {
				s.g.t.Errorf("%d is committed, and %d records are written", p.GetNextOffset(), printed)
			}
		}
		s.say(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_CommitResult{CommitResult: &gatewayv1.ConsumeCommitResult{Sequence: m.Commit.GetSequence()}}})
	case *gatewayv1.ConsumeRequest_Revoked:
		s.revoked = true
	case *gatewayv1.ConsumeRequest_Leave:
		s.left = true
		s.say(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Closed{Closed: &gatewayv1.ConsumeClosed{}}})
	}
	return nil
}

func (s *stream) say(m *gatewayv1.ConsumeResponse) { s.answers <- event{response: m} }

func (s *stream) sayOpened() {
	s.say(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Opened{Opened: &gatewayv1.ConsumeOpened{MemberId: "m", Attach: s.open.GetAttach() + 1}}})
}

func (s *stream) assign(start int64) {
	s.say(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Assigned{Assigned: &gatewayv1.ConsumeAssigned{Topic: "t", StartOffset: start, TopicId: []byte("0123456789abcdef")}}})
}

func (s *stream) records(from, to int64, cost int64) {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.credit -= cost
	m := &gatewayv1.ConsumeRecords{Topic: "t", NextOffset: to, Cost: cost}
	for o := from; o < to; o++ {
		m.Records = append(m.Records, &gatewayv1.ConsumeRecord{Offset: o})
	}
	s.say(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Records{Records: m}})
}

// newest waits until everything stands still and gives the newest stream.
func (g *gateway) newest() *stream {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.streams[len(g.streams)-1]
}

// opened is how many streams there have been.
func (g *gateway) opened() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.streams)
}

// all are the commits so far.
func (g *gateway) all() []int64 {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.commits)
}

// committed is what was committed last; -1: nothing.
func (g *gateway) committed() int64 {
	if all := g.all(); len(all) > 0 {
		return all[len(all)-1]
	}
	return -1
}

// running is a Run under way. Each record is printed as the last digit of its offset.
type running struct {
	*gateway
	interrupt chan struct{}
	summary   Summary
	err       error
	done      chan struct{}
}

func runInBubble(t *testing.T, change func(*Config)) *running {
	r := &running{gateway: &gateway{t: t, out: newPipe()}, interrupt: make(chan struct{}, 1), done: make(chan struct{})}
	cfg := Config{
		Client: r.gateway, Open: &gatewayv1.ConsumeOpen{Group: "g"}, Partitions: []Partition{{"t", 0}}, AutoCommit: true, Out: r.out, Interrupt: r.interrupt,
		Format: func(out []byte, _ string, _ int32, m *gatewayv1.ConsumeRecord) []byte {
			return append(out, byte('0'+m.GetOffset()%10))
		},
	}
	if change != nil {
		change(&cfg)
	}
	go func() {
		defer close(r.done)
		r.summary, r.err = Run(t.Context(), cfg)
	}()
	return r
}

func pass(d time.Duration) { <-time.After(d) }

// An output that nobody reads costs neither the stream nor, where that breaks, the way
// back: the next one resumes with what was received, within the credit that is left.
// Nothing is committed before it was written, and nothing is written twice.
func TestBlockedOutputKeepsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runInBubble(t, nil)
		first := r.newest()
		first.assign(0)
		first.records(0, 3, 100)
		synctest.Wait()
		first.records(3, 5, 50)
		pass(time.Minute)
		if first.sofar().pings < 10 || r.newest() != first {
			t.Fatalf("%d pings in a minute with an output that is blocked, and %d streams", first.sofar().pings, r.opened())
		}
		first.answers <- event{err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the gateway restarts")}
		pass(5 * time.Second)
		second := r.newest()
		if second == first {
			t.Fatal("no new stream while the output is blocked")
		}
		at := second.sofar().open.GetPositions()
		if second.sofar().open.GetMemberId() != "m" || second.sofar().open.GetAttach() != 1 || second.sofar().open.GetCreditBytes() != creditBytes-150 {
			t.Errorf("resumed with %v", second.sofar().open)
		}
		if len(at) != 1 || at[0].GetNextOffset() != 5 {
			t.Errorf("resumed at %v, want 5", at)
		}
		second.assign(0)
		second.records(3, 7, 30)
		pass(time.Minute)
		if got := r.committed(); got > 0 {
			t.Errorf("%d is committed", got)
		}
		r.out.read()
		pass(2 * time.Second)
		if r.out.String() != "0123456" || r.committed() != 7 || second.sofar().credit != creditBytes {
			t.Errorf("printed %q, committed %d, credit %d", r.out.String(), r.committed(), second.sofar().credit)
		}
		r.interrupt <- struct{}{}
		<-r.done
		if r.err != nil || r.summary.Uncommitted != 0 || !second.sofar().left {
			t.Errorf("%v, %+v, left %v", r.err, r.summary, second.sofar().left)
		}
	})
}

// Who reads slowly gets everything, also when all of it has been received; the Run does
// not end before, with or without a group, and also not when the stream ends for good.
func TestTheEndWaitsForTheOutput(t *testing.T) {
	for _, group := range []string{"g", ""} {
		for _, fenced := range []bool{false, group != ""} {
			synctest.Test(t, func(t *testing.T) {
				r := runInBubble(t, func(cfg *Config) {
					cfg.Open.Group, cfg.AutoCommit = group, group != ""
					cfg.Ends = map[Partition]int64{{"t", 0}: 4}
				})
				s := r.newest()
				s.assign(0)
				s.records(0, 2, 10)
				synctest.Wait()
				s.records(2, 4, 10)
				pass(time.Minute)
				if ended := s.ctx.Err() != nil; ended != (group == "") {
					t.Errorf("group %q: the stream is given up: %v", group, ended)
				}
				if fenced {
					s.answers <- event{err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INSTANCE_FENCED, "another has the name")}
				}
				pass(time.Hour)
				select {
				case <-r.done:
					t.Fatal("ended before the output was written")
				default:
				}
				r.out.read()
				<-r.done
				if r.err != nil || r.out.String() != "0123" {
					t.Errorf("group %q: %v, printed %q", group, r.err, r.out.String())
				}
				if group != "" && !fenced && r.committed() != 4 || fenced && r.summary.Uncommitted != 1 {
					t.Errorf("committed %d, %+v", r.committed(), r.summary)
				}
			})
		}
	}
}

// A stream that the gateway closes, since all has been delivered, is opened anew only
// where there is something to commit.
func TestAClosedStreamAndABlockedOutput(t *testing.T) {
	for group, streams := range map[string]int{"g": 2, "": 1} {
		synctest.Test(t, func(t *testing.T) {
			r := runInBubble(t, func(cfg *Config) { cfg.Open.Group, cfg.AutoCommit = group, group != "" })
			s := r.newest()
			s.assign(0)
			s.records(0, 2, 10)
			s.say(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Closed{Closed: &gatewayv1.ConsumeClosed{}}})
			pass(time.Minute)
			if group != "" {
				r.newest().assign(0)
			}
			pass(time.Hour)
			r.out.read()
			<-r.done
			if r.err != nil || r.out.String() != "01" || r.opened() != streams {
				t.Errorf("group %q: %v, printed %q, %d streams", group, r.err, r.out.String(), r.opened())
			}
			if group != "" && r.committed() != 2 {
				t.Errorf("committed %d", r.committed())
			}
		})
	}
}

// An interrupt ends the wait for whoever does not read.
func TestInterruptWithABlockedOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runInBubble(t, nil)
		s := r.newest()
		s.assign(0)
		s.records(0, 2, 10)
		pass(time.Minute)
		r.interrupt <- struct{}{}
		pass(finishLimit + leaveLimit + time.Second)
		select {
		case <-r.done:
		default:
			t.Fatal("the interrupt does not end the Run")
		}
		if r.err != nil || !r.summary.Interrupted || r.summary.Uncommitted != 1 || r.committed() > 0 {
			t.Errorf("%v, %+v, committed %d", r.err, r.summary, r.committed())
		}
		r.out.read() // let the write that was given up end
	})
}

// An interrupt while the group is being joined leaves it again: the gateway may have
// counted the member in. Where it does not answer, that is not waited for long.
func TestInterruptWhileJoining(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := runInBubble(t, func(c *Config) { c.Client.(*gateway).slow = true })
			s := r.newest()
			synctest.Wait()
			r.interrupt <- struct{}{}
			pass(leaveLimit / 2)
			if answers {
				s.sayOpened()
			}
			pass(leaveLimit)
			select {
			case <-r.done:
			default:
				t.Fatal("the interrupt does not end the Run")
			}
			if r.err != nil || !r.summary.Interrupted || s.sofar().left != answers {
				t.Errorf("%v, %+v, left %v", r.err, r.summary, s.sofar().left)
			}
		})
	}
}

// A partition is given up when its records are written and committed, or when its time
// is nearly over.
func TestRevocationWaitsForTheOutput(t *testing.T) {
	for _, read := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := runInBubble(t, nil)
			s := r.newest()
			s.assign(0)
			s.records(0, 2, 10)
			pass(5 * time.Second)
			s.say(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_Revoke{Revoke: &gatewayv1.ConsumeRevoke{Topic: "t"}}})
			pass(time.Second)
			if s.sofar().revoked {
				t.Fatal("given up at once")
			}
			want := int64(0) // the start is
			if read {
				want = 2
				r.out.read()
			}
			pass(finishLimit)
			if got := r.committed(); got != want || !s.sofar().revoked {
				t.Errorf("read %v: committed %d, given up %v", read, got, s.sofar().revoked)
			}
			if !read {
				r.out.read()
			}
			r.interrupt <- struct{}{}
			<-r.done
		})
	}
}

// A write that was begun before the group was reset says nothing of where the group
// goes on.
func TestResetDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runInBubble(t, nil)
		s := r.newest()
		r.out.read()
		s.assign(0)
		s.records(0, 5, 10)
		pass(2 * time.Second)
		r.out.block()
		s.records(5, 9, 10)
		pass(2 * time.Second)
		s.assign(2)
		s.records(2, 3, 10)
		pass(time.Second)
		r.out.read()
		pass(5 * time.Second)
		if got := r.committed(); got != 3 || slices.Contains(r.all(), 9) || r.out.String() != "0123456782" {
			t.Errorf("committed %v, printed %q", r.all(), r.out.String())
		}
		r.interrupt <- struct{}{}
		<-r.done
	})
}
