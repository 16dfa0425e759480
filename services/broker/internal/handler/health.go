package handler

import (
	"errors"
	"io"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
)

func timeOf(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// WatchHealth answers probes, from the first moment on: a broker that is starting
// lives.
func (h *Handlers) WatchHealth(stream brokerv1.HealthStreamService_WatchHealthServer) error {
	req, err := stream.Recv()
	if err != nil {
		return endOfStream(err)
	}
	if req.GetInitial() == nil {
		return protocolError("the first message of a health stream must be initial")
	}
	if err := rpc.CheckHandshake(req.GetInitial().GetHandshake()); err != nil {
		return err
	}
	err = stream.Send(&brokerv1.WatchHealthResponse{Message: &brokerv1.WatchHealthResponse_Initial{
		Initial: &brokerv1.HealthInitialResponse{Handshake: rpc.LocalHandshake(), Broker: h.cfg.Broker},
	}})
	if err != nil {
		return err
	}
	read := make(chan error, 1)
	h.readers.Go(func() { read <- h.answerProbes(stream) })
	select {
	case err := <-read:
		return endOfStream(err)
	case <-h.cfg.Draining:
		return h.draining()
	}
}

// answerProbes answers until the controller ends the stream.
func (h *Handlers) answerProbes(stream brokerv1.HealthStreamService_WatchHealthServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		probe := req.GetProbe()
		if probe == nil {
			return protocolError("only probes may follow initial on a health stream")
		}
		answer := &brokerv1.HealthAnswer{ProbeId: probe.GetProbeId(), Broker: h.cfg.Broker, Position: h.cfg.Position().ClientProto(), DisksOk: true}
		if m := h.replicas.Load(); m != nil {
			answer.DisksOk = m.DisksOK()
		}
		if h.cfg.Unreachable != nil {
			answer.UnreachableLeaders = h.cfg.Unreachable()
		}
		if h.cfg.Deaf != nil {
			answer.DeafLeaders = h.cfg.Deaf()
		}
		if err := stream.Send(&brokerv1.WatchHealthResponse{Message: &brokerv1.WatchHealthResponse_Answer{Answer: answer}}); err != nil {
			return err
		}
	}
}

// endOfStream is nil when the client has said all it had to say.
func endOfStream(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
