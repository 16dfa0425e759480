package produce

import (
	"context"
	"sync"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
)

// event is what a session tells the engine: exactly one of opened, response
// and err is set, and err comes last.
type event struct {
	session  *session
	opened   *gatewayv1.ProduceOpened
	response *gatewayv1.ProduceResponse
	err      error
}

// session is one stream to a gateway, with a goroutine that receives and one
// that sends, so that neither direction can block the engine.
type session struct {
	cancel context.CancelFunc
	sends  chan *gatewayv1.ProduceRequest
	once   sync.Once
	wait   sync.WaitGroup

	opened      bool // the engine's: the gateway has answered Open
	draining    bool // the engine's: nothing more is sent here
	outstanding int  // the engine's: chunks sent and unanswered
}

// startSession opens a stream; its events go to out until the context ends.
func startSession(ctx context.Context, client gatewayv1.ProducerServiceClient, open *gatewayv1.ProduceOpen, out chan<- event) *session {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{cancel: cancel, sends: make(chan *gatewayv1.ProduceRequest, maxInFlightChunks)}
	tell := func(ev event) {
		ev.session = s
		select {
		case out <- ev:
		case <-ctx.Done():
		}
	}
	s.wait.Go(func() {
		stream, err := client.Produce(ctx)
		if err != nil {
			tell(event{err: err})
			return
		}
		// The error of a failed Send is that of the Recv which follows.
		_ = stream.Send(&gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Open{Open: open}})
		s.wait.Go(func() { s.sendAll(ctx, stream) })
		for {
			response, err := stream.Recv()
			if err != nil {
				tell(event{err: err})
				return
			}
			if opened := response.GetOpened(); opened != nil {
				tell(event{opened: opened})
				continue
			}
			tell(event{response: response})
		}
	})
	return s
}

func (s *session) sendAll(ctx context.Context, stream gatewayv1.ProducerService_ProduceClient) {
	for {
		select {
		case <-ctx.Done():
			return
		case request, ok := <-s.sends:
			if !ok {
				_ = stream.CloseSend()
				return
			}
			if stream.Send(request) != nil {
				return // Recv tells why
			}
		}
	}
}

// halfClose says that no more sends follow.
func (s *session) halfClose() { s.once.Do(func() { close(s.sends) }) }

// end breaks the stream off and waits for its goroutines.
func (s *session) end() {
	s.cancel()
	s.wait.Wait()
}
