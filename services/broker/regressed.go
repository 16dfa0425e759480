package broker

import (
	"context"
	"errors"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// registrationCheck is how often a broker looks whether its registration key is older
// than what it has followed.
const registrationCheck = 500 * time.Millisecond

func (b *Broker) identityInMesh() partition.Replica {
	return partition.Replica{Broker: b.self.GetId(), Incarnation: b.self.GetIncarnation()}
}

// regress has the broker serve nothing because etcd went back in time, until the mesh
// has been restored: nil ends it.
func (b *Broker) regress(err *rpc.Error) {
	b.handlers.Refuse(err)
	switch was := b.regressed.Swap(err); {
	case err != nil && (was == nil || was.Metadata["what"] != err.Metadata["what"]):
		b.logger.Error("serves nothing until the mesh is restored", "error", err)
	case err == nil && was != nil:
		b.logger.Warn("the mesh has been restored: serves again", "position", b.watcher.Image().Position().String())
	}
}

// awaitHistory waits until the metadata is a continuation of what the disks have
// followed in earlier lives; before that nothing is opened, made or deleted. It
// returns the image that is, or nil when ctx ends.
func (b *Broker) awaitHistory(ctx context.Context) *metadata.Image {
	for {
		image, changed := b.watcher.Watch()
		if have := b.store.ClusterID(); have != "" && image.ClusterID() != have {
			return image // not a past of this mesh but another mesh, which Adopt refuses
		}
		verdict := b.watcher.Regressed()
		var regressed *store.RegressedError
		if err := b.store.CheckHistory(replica.History(image, b.identityInMesh())); errors.As(err, &regressed) {
			verdict = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED, "%w", err).With("what", regressed.What)
		}
		b.regress(verdict)
		if verdict == nil {
			return image
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// watchHistory looks, while the broker serves, whether etcd goes back: when the
// controllers say so, or when the broker's own new registration key is older than
// metadata that it had followed before it made that key. Metadata of a higher
// generation ends it.
func (b *Broker) watchHistory(ctx context.Context) {
	tick := time.NewTicker(registrationCheck)
	defer tick.Stop()
	var floor metadata.Position // followed while registration was the key
	registration := b.registrar.Revision()
	var broken *rpc.Error // by the registration; until a higher generation
	for {
		image, changed := b.watcher.Watch()
		followed := image.Position()
		switch now := b.registrar.Revision(); {
		case now == 0:
		case now == registration:
			floor = followed
		default:
			shown := image.Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, b.self.GetId()) != nil
			if shown && followed.Generation == floor.Generation && now <= floor.Revision {
				broken = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED,
					"the registration key was made at revision %d although this broker had followed the metadata up to %d: etcd went back in time; restore the mesh before anything else", now, floor.Revision).With("what", "registration")
			}
			registration = now
		}
		if broken != nil && followed.Generation > floor.Generation {
			broken = nil
		}
		verdict := b.watcher.Regressed()
		if verdict == nil {
			verdict = broken
		}
		b.regress(verdict)
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
