package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

const (
	// applyRetry is how soon something that the metadata asks for and that failed
	// is tried again.
	applyRetry = time.Second
	// registerTimeout bounds one attempt to register; another one follows.
	registerTimeout = 10 * time.Second
	// registerPause lies between an accepted registration and asking again, while
	// the metadata does not show it.
	registerPause = 2 * time.Second
	// confirmTimeout bounds one attempt to confirm deletions.
	confirmTimeout = 10 * time.Second
)

// Run serves until ctx ends, then stops in order: routing and new calls first,
// then what is in flight, the registration, last the logs and their marks. It
// returns nil after a clean stop. Once only.
func (b *Broker) Run(ctx context.Context) (err error) {
	client, err := registry.NewEtcd(b.cfg.EtcdEndpoints, b.cfg.DialSource, b.logger)
	if err != nil {
		return errors.Join(err, b.lis.Close())
	}
	defer func() { err = errors.Join(err, b.pool.Close(), client.Close()) }()
	keys := registry.NewKeys(b.cfg.EtcdPrefix)
	b.discover = registry.Discovery(client, keys, b.cfg.ControllerAddresses)
	b.registrar = registry.NewRegistrar(registry.RegistrarConfig{
		Client: client, Keys: keys, Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: b.self, Address: b.address,
		Rack: b.cfg.Rack, TTL: b.cfg.LeaseTTL, Prober: registry.NewProber(b.cfg.DialConfig(b.deps)), Logger: b.logger, Healthy: b.disksOK, Renewed: b.lease.renewed,
	})
	b.group.Add("server", b.runServer)
	b.group.Add("store", b.runStore)
	b.group.Add("registration", b.runRegistration)
	b.group.Add("metadata", b.runMetadata)
	b.group.Add("producer ids", b.runProducerIDs)
	b.group.Add("replicas", b.runReplicas)
	b.group.Add("vouching", b.runVouching)
	b.group.Add("drain", b.runDrain)
	b.group.Add("leave", b.runLeave)
	return b.group.Run(ctx)
}

// leaseRenewed lets leaders that are alone in sync go on where another may be elected
// uncleanly.
func (b *Broker) leaseRenewed(asked time.Time) {
	if m := b.replicas.Load(); m != nil {
		m.LeaseRenewed(asked)
	}
}

func (b *Broker) disksOK() bool {
	m := b.replicas.Load()
	return m == nil || m.DisksOK()
}

// runServer serves from the first moment, so that others can ask who this is.
// The drain comes before the end of this part.
func (b *Broker) runServer(ctx context.Context, ready func()) error {
	served := make(chan error, 1)
	go func() { served <- b.server.Serve(b.lis) }()
	ready()
	select {
	case err := <-served:
		if err == nil { // drained; the parts in between have yet to stop
			<-ctx.Done()
		}
		return err
	case <-ctx.Done():
		b.server.Stop()
		return <-served
	}
}

// runStore locks and recovers the disks, and closes them at the end.
func (b *Broker) runStore(ctx context.Context, ready func()) error {
	bootID := b.cfg.BootID
	if bootID == "" {
		bootID = store.BootID()
	}
	s, err := store.Open(store.Options{
		FS: b.cfg.FS, Dirs: b.cfg.LogDirs, BrokerID: b.self.GetId(), Incarnation: b.self.GetIncarnation(), BootID: bootID,
		OpenParallelism: b.cfg.RecoveryThreads, OpenFiles: b.cfg.openFiles(), Logger: b.logger,
		Space: store.Space{Reserve: b.cfg.ReserveBytes, Throttle: b.cfg.ThrottleBytes, Warn: b.cfg.WarnBytes, ThrottleRate: b.cfg.ThrottleRateBytes},
	})
	if err != nil {
		return storeError(err)
	}
	b.store = s
	b.logger.Info("recovered the disks", "replicas", len(s.Replicas()), "disks", len(s.Disks()), "cluster_id", s.ClusterID())
	ready()
	<-ctx.Done()
	return s.Close()
}

// storeError gives a refusal its reason.
func storeError(err error) error {
	var owner *store.WrongOwnerError
	var none *store.NoDiskError
	if errors.As(err, &none) {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE, "%w", err).With("dir", strings.Join(none.Dirs, ","))
	}
	if errors.As(err, &owner) {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER, "%w", err).With("dir", owner.Dir)
	}
	return err
}

func (b *Broker) runRegistration(ctx context.Context, ready func()) error {
	return b.whenReady(ctx, ready, b.registrar.Run, func(ctx context.Context) error {
		_, err := b.registrar.WaitRegistered(ctx)
		return err
	})
}

// runMetadata is ready once the stream shows this process's own registration:
// before that it leads, follows, acknowledges and deletes nothing.
func (b *Broker) runMetadata(ctx context.Context, ready func()) error {
	return b.whenReady(ctx, ready, b.watcher.Run, func(ctx context.Context) error {
		return b.watcher.WaitForRevision(ctx, b.registrar.FirstRevision())
	})
}

// whenReady runs a part and calls ready once a wait beside it is over.
func (b *Broker) whenReady(ctx context.Context, ready func(), run, wait func(context.Context) error) error {
	waitCtx, cancel := context.WithCancel(ctx)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if wait(waitCtx) == nil {
			ready()
		}
	}()
	err := run(ctx)
	cancel()
	<-waited
	return err
}

// runReplicas binds the disks to the mesh, then keeps the replicas as each image
// of the metadata says.
func (b *Broker) runReplicas(ctx context.Context, ready func()) error {
	image := b.awaitHistory(ctx)
	if image == nil {
		return nil
	}
	if err := b.store.Adopt(image.ClusterID(), b.expected(image)); err != nil {
		return storeError(err)
	}
	m := replica.NewManager(replica.Config{
		Self: partition.Replica{Broker: b.self.GetId(), Incarnation: b.self.GetIncarnation()}, Store: b.store, Confirm: b.confirm, Report: b.report,
		Logger: b.logger, Metrics: b.metrics, Tracer: b.tracer(),
		WatermarkInterval:  time.Duration(b.cfg.WatermarkCheckpointMs) * time.Millisecond,
		RecoveryInterval:   time.Duration(b.cfg.FlushCheckpointMs) * time.Millisecond,
		ProducerExpiration: time.Duration(b.cfg.ProducerIDExpirationMs) * time.Millisecond,
		DiskTimeout:        b.cfg.DiskWatchdog, CreateParallelism: max(b.cfg.RecoveryThreads, 8),
		Upkeep: replica.Upkeep{
			RetentionInterval: time.Duration(b.cfg.RetentionCheckMs) * time.Millisecond, CleanerOff: !b.cfg.CleanerEnable,
			CleanerBackoff: time.Duration(b.cfg.CleanerBackoffMs) * time.Millisecond, CleanerBuffer: b.cfg.CleanerBufferBytes,
			CleanerRate: b.cfg.CleanerRateBytes, MaxDecodedBytes: b.cfg.MaxDecodedBytes,
		},
		Settings: partition.Settings{LagTimeMax: time.Duration(b.cfg.ReplicaLagTimeMaxMs) * time.Millisecond, LeaseTTL: b.cfg.LeaseTTL},
		Leaders:  b.following, ProposeISR: b.controllers.ProposeIsr,
	})
	b.replicas.Store(m)
	clock := make(chan error, 1)
	clockCtx, stopClock := context.WithCancel(context.WithoutCancel(ctx))
	go func() { clock <- m.Run(clockCtx) }()
	following := make(chan error, 1)
	go func() { following <- b.following.Run(clockCtx) }()
	var watching sync.WaitGroup
	watching.Go(func() { b.watchHistory(ctx) })
	b.applyImages(ctx, m, ready)
	watching.Wait()
	// The clock goes on while what is in flight ends: deadlines hold to the last.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.ShutdownTimeout/3)
	defer cancel()
	b.following.Close() // a follower of others would never come to rest
	err := m.Stop(stop)
	b.handlers.Wait()
	b.leading.Wait()
	stopClock()
	return errors.Join(err, <-clock, <-following)
}

// applyImages applies images until ctx ends.
func (b *Broker) applyImages(ctx context.Context, m *replica.Manager, ready func()) {
	retry := time.NewTimer(applyRetry)
	defer retry.Stop()
	for {
		image, changed := b.watcher.Watch()
		again := m.Apply(image)
		b.lease.reached(image.Position().Revision)
		b.handlers.Open(m)
		b.leading.Open(m)
		if !m.Pending() {
			ready() // every folder is there, and can be vouched for
		}
		var timer <-chan time.Time
		if again {
			retry.Reset(applyRetry)
			timer = retry.C
		}
		select {
		case <-changed:
		case <-m.Again():
		case <-timer:
		case <-ctx.Done():
			return
		}
	}
}

// expected are the replicas that this broker holds by the metadata.
func (b *Broker) expected(image *metadata.Image) []store.Key {
	var keys []store.Key
	for _, t := range image.Topics() {
		if t.Deleting {
			continue
		}
		for _, p := range t.Partitions() {
			if slices.Contains(p.GetReplicas(), b.self.GetId()) {
				keys = append(keys, store.Key{Topic: t.ID, Partition: p.GetPartition()})
			}
		}
	}
	return keys
}

func (b *Broker) confirm(ctx context.Context, topicIDs [][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	_, err := b.controllers.ConfirmDeletion(ctx, &controllerv1.ConfirmDeletionRequest{Broker: b.self, TopicIds: topicIDs})
	return err
}

// runVouching brings registration and vouches to the elected controller whenever
// the metadata does not show this life of the broker unfenced, and once to each
// other that is elected: vouches are in a controller's memory only, and what waits
// for the word of every replica needs this one's as well. It is ready once the
// metadata shows the broker unfenced.
func (b *Broker) runVouching(ctx context.Context, ready func()) error {
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	var accepted int64 // election revision of the controller that accepted last; 0: none
	var told int64     // the same, and it stays
	for {
		image, changed := b.watcher.Watch()
		var again <-chan time.Time
		if b.leaving.Load() {
			<-ctx.Done() // leave ends with the process: to register would take it back
			return nil
		}
		elected := image.ControllerLeader().GetElectionRevision()
		fresh := told != 0 && elected != 0 && elected != told // a controller that has not been told
		if b.unfenced(image) {
			ready()
			accepted = 0
			if told == 0 {
				told = elected // the answer was lost
			}
		}
		if b.unfenced(image) && !fresh {
			backoff.Reset()
		} else if elected == 0 || elected != accepted {
			err := b.register(ctx, image)
			switch {
			case ctx.Err() != nil:
				return nil
			case fatal(err):
				return err
			case err != nil:
				b.logger.Warn("could not register with the elected controller; trying again", "error", err)
				again = time.After(backoff.Next())
			default:
				accepted, told = elected, elected
				again = time.After(registerPause)
			}
		} else {
			again = time.After(registerPause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
			accepted = 0
		}
	}
}

func (b *Broker) unfenced(image *metadata.Image) bool {
	r := image.Broker(b.self.GetId())
	return r != nil && r.GetBroker().GetIncarnation() == b.self.GetIncarnation() && !r.GetFenced()
}

// fatal reports whether a refusal says that this process must not go on.
func fatal(err error) bool {
	return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_WRONG_CLUSTER, typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID,
		typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED)
}

// register vouches for the replicas once.
func (b *Broker) register(ctx context.Context, image *metadata.Image) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	revision, err := b.registrar.WaitRegistered(ctx)
	if err != nil {
		return fmt.Errorf("wait for the registration key: %w", err)
	}
	highest := b.store.HighestPosition()
	req := &controllerv1.RegisterBrokerRequest{
		Handshake: rpc.LocalHandshake(), Broker: b.self, Address: b.address, Rack: b.cfg.Rack, ClusterId: b.store.ClusterID(),
		RegistrationRevision: revision, HighestPosition: metadata.Position(highest).Proto(),
	}
	isOS := func(k store.Key) bool {
		t := image.TopicByID(k.Topic)
		return t != nil && !t.Config.FsyncBeforeAck()
	}
	req.Vouches = vouchProtos(b.store.Vouches(isOS))
	resp, err := b.controllers.RegisterBroker(ctx, req)
	if err != nil {
		return err
	}
	b.logger.Info("registered", "vouches", len(req.GetVouches()), "unfenced", resp.GetUnfenced(), "position", metadata.PositionOf(resp.GetPosition()).String())
	return nil
}

// runDrain stops before everything that clients use: they are sent away first.
func (b *Broker) runDrain(ctx context.Context, ready func()) error {
	b.server.SetServing(true)
	ready()
	<-ctx.Done()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.ShutdownTimeout/3)
	defer cancel()
	b.server.Shutdown(drain)
	return nil
}
