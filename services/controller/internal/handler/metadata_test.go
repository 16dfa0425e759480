package handler

import (
	"log/slog"
	"testing"

	"google.golang.org/grpc"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/services/controller/internal/store"
)

// sentStream keeps what is sent.
type sentStream struct {
	grpc.ServerStreamingServer[controllerv1.WatchMetadataResponse]
	last *controllerv1.WatchMetadataResponse
}

func (s *sentStream) Send(m *controllerv1.WatchMetadataResponse) error {
	s.last = m
	return nil
}

// A receiver that is told of a position believes that it knows every change up to it: a
// broker would take a bar, or its own registration, for shown that it has not been sent.
func TestAHeartbeatTellsNoPositionWhoseChangesAreNotSent(t *testing.T) {
	s := store.New(nil, registry.NewKeys("/leat"), slog.New(slog.DiscardHandler))
	stream := &sentStream{}
	w := &watcherStream{stream: stream, store: s, sent: &controllerv1.Position{Generation: 1, Revision: 5}}
	sub := s.Subscribe() // everything is still to be taken
	defer sub.Close()
	beat := func() int64 {
		t.Helper()
		if err := w.heartbeat(sub); err != nil {
			t.Fatal(err)
		}
		if stream.last.GetHeartbeat() == nil {
			t.Fatalf("sent %v", stream.last)
		}
		return stream.last.GetPosition().GetRevision()
	}
	if got := beat(); got != 5 {
		t.Errorf("with changes waiting the heartbeat tells revision %d, and only 5 was sent", got)
	}
	sub.Take(func(*cluster.State, int64, map[cluster.Key]struct{}, bool) {})
	if got := beat(); got != s.Revision() {
		t.Errorf("with everything taken the heartbeat tells revision %d, and the store shows %d", got, s.Revision())
	}
}
