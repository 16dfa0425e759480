package metadata

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// errSilent ends a stream whose controller says nothing, or nothing new.
var errSilent = errors.New("the controller has fallen silent")

// Run follows the metadata until ctx ends, and then returns nil. It changes
// controller when one fails or falls silent, and never gives up. The one error it
// returns is WRONG_CLUSTER: the controllers belong to another mesh than the
// process's data.
func (w *Watcher) Run(ctx context.Context) error {
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	last, reported := "", ""
	for ctx.Err() == nil {
		addr, err := w.pick(ctx, last)
		if err == nil {
			last = addr
			var progressed bool
			progressed, err = w.follow(ctx, addr)
			if progressed {
				backoff.Reset()
				reported = ""
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER):
			return err
		}
		// Once per state, not per attempt: with etcd or every controller away this
		// goes on for hours.
		if text := err.Error(); text != reported {
			reported = text
			w.opts.Logger.Warn("metadata stream ended, trying another controller", "controller", addr, "error", err)
		}
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// pick chooses a controller other than the last one, if there is another.
func (w *Watcher) pick(ctx context.Context, last string) (string, error) {
	var candidates []string
	for _, r := range w.Image().Registrations(controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER) {
		candidates = append(candidates, r.GetAddress())
	}
	var lookup error
	if w.opts.Discover != nil {
		lookupCtx, cancel := context.WithTimeout(ctx, connectLimit)
		var found []string
		found, lookup = w.opts.Discover(lookupCtx)
		cancel()
		candidates = append(candidates, found...)
	}
	slices.Sort(candidates)
	candidates = slices.Compact(candidates)
	if others := slices.DeleteFunc(slices.Clone(candidates), func(a string) bool { return a == last }); len(others) > 0 {
		candidates = others
	}
	if len(candidates) == 0 {
		return "", errors.Join(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE,
			"no controller is registered; start one, or check etcd.endpoints and etcd.prefix"), lookup)
	}
	return candidates[rand.IntN(len(candidates))], nil
}

// session is one stream: what it has sent so far, which is shown only once it is
// no older than the image shown.
type session struct {
	w       *Watcher
	base    *Image // complete state of the stream; nil before the first snapshot
	pending *draft // a snapshot or a change in several messages, not complete yet
	cluster string
	etcd    uint64
}

// follow runs one stream. progressed tells whether it got as far as showing
// something.
func (w *Watcher) follow(ctx context.Context, addr string) (progressed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := w.opts.Pool.Get(addr)
	if err != nil {
		return false, err
	}
	watchdog := time.AfterFunc(connectLimit, func() { cancel(errSilent) })
	defer watchdog.Stop()
	stream, err := controllerv1.NewMetadataServiceClient(conn).WatchMetadata(ctx, &controllerv1.WatchMetadataRequest{
		Handshake: rpc.LocalHandshake(), Kind: w.opts.Kind, Watcher: w.opts.Process,
		MinPosition: w.Image().Position().Proto(),
	})
	if err != nil {
		return false, rpc.FromError(err)
	}
	s := &session{w: w}
	for {
		msg, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			if e := rpc.FromError(err); e.Reason == typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED {
				w.setRegressed(e)
			}
			return progressed, err
		}
		watchdog.Reset(silenceLimit)
		shown, err := s.take(msg)
		progressed = progressed || shown
		if err != nil {
			return progressed, err
		}
	}
}

// take applies one message and shows the result if it is complete and not older
// than what is shown.
func (s *session) take(msg *controllerv1.WatchMetadataResponse) (shown bool, err error) {
	position := PositionOf(msg.GetPosition())
	switch m := msg.GetMessage().(type) {
	case *controllerv1.WatchMetadataResponse_Initial:
		return false, s.initial(m.Initial, position)
	case *controllerv1.WatchMetadataResponse_Snapshot:
		if s.pending == nil || s.base != nil {
			s.pending, s.base = edit(newImage()), nil
			s.pending.image.clusterID, s.pending.image.etcdClusterID = s.cluster, s.etcd
		}
		s.pending.apply(m.Snapshot.GetEntries())
		if !m.Snapshot.GetLast() {
			return false, nil
		}
	case *controllerv1.WatchMetadataResponse_Delta:
		if s.base == nil {
			return false, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL, "the controller sent a change before the whole state")
		}
		if s.pending == nil {
			s.pending = edit(s.base)
		}
		s.pending.apply(m.Delta)
		if msg.GetPartial() {
			return false, nil
		}
	case *controllerv1.WatchMetadataResponse_Heartbeat:
		return s.heartbeat(position, m.Heartbeat)
	default:
		// A kind of message of a newer release, which it may send only if it can be
		// done without.
		return false, nil
	}
	s.base = s.pending.done(position)
	s.pending = nil
	s.w.publish(s.base)
	return true, nil
}

func (s *session) initial(m *controllerv1.WatchInitial, position Position) error {
	if err := rpc.CheckHandshake(m.GetHandshake()); err != nil {
		return err
	}
	s.cluster, s.etcd = m.GetClusterId(), m.GetEtcdClusterId()
	for _, known := range []string{s.w.opts.ClusterID, s.w.Image().ClusterID()} {
		if known != "" && s.cluster != known {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER,
				"the controllers belong to the mesh %s, this process's data to %s; check etcd.endpoints, etcd.prefix and the data directory", s.cluster, known)
		}
	}
	return s.w.checkRegression(s.etcd, position)
}

// checkRegression refuses metadata that is not a continuation of what this process
// has seen, and remembers the verdict for Regressed. A lower revision alone says
// nothing here: a controller may be behind.
func (w *Watcher) checkRegression(etcd uint64, position Position) error {
	image := w.Image()
	generation := max(w.opts.Generation, image.Position().Generation)
	known := image.EtcdClusterID()
	if known == 0 || image.Position().Generation < w.opts.Generation {
		known = w.opts.EtcdClusterID
	}
	var verdict *rpc.Error
	switch {
	case position.Generation < generation:
		verdict = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED,
			"the controllers have metadata of generation %d and this process has seen generation %d: etcd went back in time; restore the mesh before anything else",
			position.Generation, generation)
	case position.Generation == generation && etcd != known && etcd != 0 && known != 0:
		verdict = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED,
			"the controllers use the etcd cluster %x and this process has followed %x in the same generation %d: etcd was made anew; restore the mesh before anything else",
			etcd, known, generation)
	}
	if verdict == nil {
		return nil // known for certain once an image is shown
	}
	w.setRegressed(verdict)
	return verdict
}

// heartbeat moves the position on, and leaves a controller that etcd has been
// silent to for long.
func (s *session) heartbeat(position Position, m *controllerv1.Heartbeat) (bool, error) {
	if s.base == nil || s.pending != nil {
		return false, nil
	}
	if s.base.Position().Before(position) {
		s.base = edit(s.base).done(position)
		s.w.publish(s.base)
	}
	return true, s.w.roam(time.Duration(m.GetEtcdSilentMs()) * time.Millisecond)
}

// roam decides whether to leave a controller that etcd is silent to. The waits
// between two such changes double, since with etcd away nobody knows more.
func (w *Watcher) roam(silent time.Duration) error {
	if silent < silenceLimit {
		w.roamStep = 0
		return nil
	}
	if len(w.Image().Registrations(controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER)) < 2 || time.Now().Before(w.roamNext) {
		return nil
	}
	w.roamStep = min(max(2*w.roamStep, silenceLimit), maxRoamStep)
	w.roamNext = time.Now().Add(w.roamStep)
	return fmt.Errorf("etcd has been silent to the controller for %v", silent)
}
