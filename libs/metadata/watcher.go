package metadata

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

const (
	// silenceLimit is how long a controller may say nothing, or say nothing new
	// from etcd, before the watcher looks for another one.
	silenceLimit = 1500 * time.Millisecond
	// connectLimit bounds the wait for a controller's first message.
	connectLimit = 3 * time.Second
	// maxRoamStep bounds the waits between leaving controllers that etcd is silent
	// to.
	maxRoamStep = 30 * time.Second
)

// Conns gives shared connections by address; *rpc.ConnPool does. The
// connections stay the pool's.
type Conns interface {
	Get(addr string) (*grpc.ClientConn, error)
}

// Options tell a Watcher who it is and where controllers are.
type Options struct {
	Kind    controllerv1.ServiceKind // kind of the watching process
	Process *typev1.Process          // the watching process
	// Discover returns addresses of controllers, in no order. It may fail and be
	// called again.
	Discover func(ctx context.Context) ([]string, error)
	Pool     Conns
	Logger   *slog.Logger
	// ClusterID, if not empty, is the only mesh to listen to: what the process
	// has found on its disks.
	ClusterID string
	// Generation and EtcdClusterID, if not 0, are the newest generation of the
	// metadata that the process has followed in an earlier life, and the etcd
	// cluster that it came from.
	Generation    int64
	EtcdClusterID uint64
}

// Watcher follows the metadata. Its methods are safe for concurrent use.
type Watcher struct {
	opts Options

	// Owned by Run: the pace of leaving controllers that etcd is silent to.
	roamStep time.Duration
	roamNext time.Time

	mu        sync.Mutex
	image     *Image
	changed   chan struct{} // closed and replaced with every new image
	regressed *rpc.Error
}

// NewWatcher makes a watcher; nothing happens before Run.
func NewWatcher(opts Options) *Watcher {
	return &Watcher{opts: opts, image: newImage(), changed: make(chan struct{})}
}

// Image is the newest picture; never nil.
func (w *Watcher) Image() *Image {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.image
}

// Changed returns a channel that is closed when the image after this call's is
// there. Take the channel first, then the image, or use Watch.
func (w *Watcher) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// Watch returns the newest image and the channel that is closed when there is a
// newer one.
func (w *Watcher) Watch() (*Image, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.image, w.changed
}

// Regressed is METADATA_REGRESSED while the controller that was last heard of has
// metadata of another history than this process has followed: etcd was restored
// from a backup or made anew. The process must serve nothing then. Otherwise nil.
// A change of it closes Changed.
func (w *Watcher) Regressed() *rpc.Error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.regressed
}

func (w *Watcher) setRegressed(verdict *rpc.Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if (verdict == nil) == (w.regressed == nil) {
		return
	}
	w.regressed = verdict
	close(w.changed)
	w.changed = make(chan struct{})
}

// WaitFor waits until the image is at or past a position, or ctx ends.
func (w *Watcher) WaitFor(ctx context.Context, position Position) error {
	return w.wait(ctx, func(i *Image) bool { return !i.Position().Before(position) })
}

// WaitForRevision waits until the image is at or past an etcd revision of its
// generation, or ctx ends: for processes that wait for their own registration.
func (w *Watcher) WaitForRevision(ctx context.Context, revision int64) error {
	return w.wait(ctx, func(i *Image) bool { return i.Position().Generation > 0 && i.Position().Revision >= revision })
}

func (w *Watcher) wait(ctx context.Context, reached func(*Image) bool) error {
	for {
		image, changed := w.Watch()
		if reached(image) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publish shows a new image, unless it is older than the one shown.
func (w *Watcher) publish(next *Image) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if next.Position().Before(w.image.Position()) {
		return
	}
	w.image, w.regressed = next, nil
	close(w.changed)
	w.changed = make(chan struct{})
}
