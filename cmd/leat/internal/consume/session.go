package consume

import (
	"context"
	"sync"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
)

// event is what a session tells: a response, or the error that ended it.
type event struct {
	session  *session
	response *gatewayv1.ConsumeResponse
	err      error
}

// session is one stream, with a goroutine for each direction.
type session struct {
	ctx    context.Context
	cancel context.CancelFunc
	sends  chan *gatewayv1.ConsumeRequest
	wait   sync.WaitGroup
}

func startSession(ctx context.Context, client gatewayv1.ConsumerServiceClient, open *gatewayv1.ConsumeOpen, out chan<- event) *session {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{ctx: ctx, cancel: cancel, sends: make(chan *gatewayv1.ConsumeRequest, 64)}
	tell := func(ev event) {
		ev.session = s
		select {
		case out <- ev:
		case <-ctx.Done():
		}
	}
	s.wait.Go(func() {
		stream, err := client.Consume(ctx)
		if err != nil {
			tell(event{err: err})
			return
		}
		_ = stream.Send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: open}})
		s.wait.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case request := <-s.sends:
					if stream.Send(request) != nil {
						return // the receiver meets the reason
					}
				}
			}
		})
		for {
			response, err := stream.Recv()
			tell(event{response: response, err: err})
			if err != nil {
				return
			}
		}
	})
	return s
}

// send queues a message. It waits only if the gateway does not read, and not
// beyond the end of the session.
func (s *session) send(request *gatewayv1.ConsumeRequest) {
	select {
	case s.sends <- request:
	case <-s.ctx.Done():
	}
}

// trySend queues a message unless the queue is full.
func (s *session) trySend(request *gatewayv1.ConsumeRequest) bool {
	select {
	case s.sends <- request:
		return true
	default:
		return false
	}
}

// end breaks the stream off, which is not a leave, and waits for its goroutines.
func (s *session) end() {
	s.cancel()
	s.wait.Wait()
}
