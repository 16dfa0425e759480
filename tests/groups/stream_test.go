package groups

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// stream is one Consume stream of a worker, as any client in any language has it.
type stream struct {
	s    gatewayv1.ConsumerService_ConsumeClient
	tell func(event)
}

// streamOn consumes through a gateway until ctx ends, and leaves.
func streamOn(ctx context.Context, cfg *workerConfig, tell func(event)) error {
	conn, err := rpc.Dial(cfg.Gateway, rpc.DialConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	life, end := context.WithCancel(context.Background())
	defer end()
	s, err := gatewayv1.NewConsumerServiceClient(conn).Consume(life)
	if err != nil {
		tell(event{Kind: failed, Text: rpc.FromError(err).Reason.String()})
		return nil
	}
	w := &stream{s, tell}
	defer tell(event{Kind: gone})
	_ = s.Send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Open{Open: &gatewayv1.ConsumeOpen{
		ClientId: cfg.Name, Group: cfg.Group, Topics: []string{cfg.Topic}, InstanceId: cfg.Instance, StartAt: gatewayv1.StartAt_START_AT_EARLIEST,
		AutoCommitInterval: durationpb.New(500 * time.Millisecond), SessionTimeout: durationpb.New(cfg.Session), RebalanceTimeout: durationpb.New(time.Minute),
	}}}) // Recv tells why it failed
	type received struct {
		m   *gatewayv1.ConsumeResponse
		err error
	}
	messages := make(chan received)
	go func() { // it ends with the stream, which ends with this call
		for {
			m, err := s.Recv()
			select {
			case messages <- received{m, err}:
			case <-life.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	leaving := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case <-leaving:
			leaving, late = nil, time.After(10*time.Second)
			_ = s.Send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Leave{Leave: &gatewayv1.ConsumeLeave{}}})
		case <-late:
			tell(event{Kind: failed, Text: "no answer to the leave"})
			return nil
		case r := <-messages:
			if r.err != nil {
				if !errors.Is(r.err, io.EOF) {
					tell(event{Kind: failed, Text: rpc.FromError(r.err).Reason.String()})
				}
				return nil
			}
			w.take(r.m)
		}
	}
}

// take works on a message before the next one: what was given is released, and what
// is asked back is given up.
func (w *stream) take(m *gatewayv1.ConsumeResponse) {
	switch m := m.Message.(type) {
	case *gatewayv1.ConsumeResponse_Records:
		r := m.Records
		for _, rec := range r.Records {
			w.tell(event{Kind: given, Partitions: []int{int(r.Partition)}, Offset: rec.Offset, Count: 1})
		}
		w.send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Release{Release: &gatewayv1.ConsumeRelease{
			Positions: []*gatewayv1.ConsumePosition{{Topic: r.Topic, Partition: r.Partition, NextOffset: r.NextOffset}},
		}}})
	case *gatewayv1.ConsumeResponse_Revoke:
		w.send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Revoked{Revoked: &gatewayv1.ConsumeRevoked{
			Partitions: []*gatewayv1.PartitionName{{Topic: m.Revoke.Topic, Partition: m.Revoke.Partition}},
		}}})
	case *gatewayv1.ConsumeResponse_Fenced:
		w.tell(event{Kind: failed, Text: rpc.FromProto(m.Fenced.Error).Reason.String()})
	case *gatewayv1.ConsumeResponse_PartitionError:
		w.tell(event{Kind: failed, Text: "partition: " + rpc.FromProto(m.PartitionError.Error).Reason.String()})
	}
}

func (w *stream) send(m *gatewayv1.ConsumeRequest) { _ = w.s.Send(m) } // Recv tells why it failed
