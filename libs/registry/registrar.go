package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// conflictRetry is the wait between two looks at a key that another life holds.
const conflictRetry = 250 * time.Millisecond

// RegistrarConfig says who is to be registered.
type RegistrarConfig struct {
	Client  *clientv3.Client
	Keys    Keys
	Kind    controllerv1.ServiceKind
	Process *typev1.Process
	Address string        // where it listens, host:port, as others reach it
	Rack    string        // empty: none
	TTL     time.Duration // of the lease; whole seconds, at least one
	Prober  *Prober
	Logger  *slog.Logger
	// Healthy, if not nil, is asked before each renewal; false lets the lease run
	// out, so that a process with a hung disk is replaced.
	Healthy func() bool
	// Renewed, if not nil, is called after each renewal of the lease that stands, the
	// grant among them, with the time at which it was asked for: never later than
	// etcd's own view.
	Renewed func(asked time.Time)
}

// Registrar keeps the process's own registration key. Its methods are safe for
// concurrent use; Run is called once at a time, and again where a process that gave
// its registration up wants it back.
type Registrar struct {
	cfg   RegistrarConfig
	value string

	mu       sync.Mutex
	revision int64
	first    int64
	changed  chan struct{}

	trouble troubleLog
}

// NewRegistrar makes a registrar; nothing happens before Run.
func NewRegistrar(cfg RegistrarConfig) *Registrar {
	return &Registrar{cfg: cfg, changed: make(chan struct{}), trouble: troubleLog{logger: cfg.Logger, what: "registration"}}
}

// Revision is the create revision of the registration key; 0 while the process is
// not registered.
func (r *Registrar) Revision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision
}

// FirstRevision is the create revision of the process's first registration key,
// the floor for what it may do; 0 before that.
func (r *Registrar) FirstRevision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}

// Changed returns a channel that is closed when the revision next changes.
func (r *Registrar) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// WaitRegistered waits until the process is registered and returns the revision.
// The error is ctx's.
func (r *Registrar) WaitRegistered(ctx context.Context) (int64, error) {
	for {
		changed := r.Changed()
		if rev := r.Revision(); rev > 0 {
			return rev, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (r *Registrar) set(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.revision == revision {
		return
	}
	r.revision = revision
	if r.first == 0 {
		r.first = revision
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// Run keeps the process registered until ctx ends; then it gives the lease back
// and returns nil. It registers again whenever the lease is lost, and retries for
// ever while etcd is away. It returns DUPLICATE_ID if another process runs with
// the same id, and *FormatError if a newer release wrote the key.
func (r *Registrar) Run(ctx context.Context) error {
	value, err := proto.Marshal(r.record())
	if err != nil {
		return fmt.Errorf("encode the registration of %s %d: %w", KindName(r.cfg.Kind), r.cfg.Process.GetId(), err)
	}
	r.value = string(value)
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	for ctx.Err() == nil {
		l, err := grant(ctx, r.cfg.Client, r.cfg.TTL)
		if err == nil {
			err = r.hold(ctx, l)
		}
		if ctx.Err() != nil {
			return nil
		}
		var format *FormatError
		if rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID) || errors.As(err, &format) {
			return err
		}
		if errors.Is(err, errRegisteredOnce) {
			backoff.Reset()
		} else {
			r.trouble.report(err)
		}
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
		}
	}
	return nil
}

// errRegisteredOnce tells Run that a registration stood for a while.
var errRegisteredOnce = errors.New("the registration was lost")

// hold registers under a lease and keeps it until it is lost or ctx ends.
func (r *Registrar) hold(ctx context.Context, l *lease) error {
	defer func() {
		r.set(0)
		if err := l.revoke(ctx); err != nil {
			r.cfg.Logger.Debug("cannot give the registration's lease back, it will run out", "error", err)
		}
	}()
	revision, err := r.create(ctx, l)
	if err != nil {
		return err
	}
	r.trouble.report(nil)
	r.set(revision)
	r.renewed(l)
	r.cfg.Logger.Info("registered", "address", r.cfg.Address, "revision", revision)
	err = l.keep(ctx, r.trouble.report, func(ctx context.Context) error {
		err := r.check(ctx, revision)
		if err == nil {
			r.renewed(l)
		}
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	r.cfg.Logger.Warn("registration lost, registering again", "error", err)
	return errRegisteredOnce
}

func (r *Registrar) renewed(l *lease) {
	if r.cfg.Renewed != nil {
		r.cfg.Renewed(l.asked)
	}
}

// check runs after each renewal.
func (r *Registrar) check(ctx context.Context, revision int64) error {
	for r.cfg.Healthy != nil && !r.cfg.Healthy() {
		// Not renewing is what this is for; the lease runs out meanwhile.
		select {
		case <-time.After(conflictRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	got, err := r.cfg.Client.Get(ctx, r.key(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	if len(got.Kvs) == 0 || got.Kvs[0].CreateRevision != revision {
		return errKeyGone
	}
	return nil
}

// create puts the key under the lease, never over another's, and returns its
// create revision.
func (r *Registrar) create(ctx context.Context, l *lease) (int64, error) {
	waiting := false
	for {
		revision, other, err := r.tryCreate(ctx, l)
		if err != nil || revision > 0 {
			return revision, err
		}
		gone, err := r.judge(ctx, l, other, &waiting)
		if err != nil {
			return 0, err
		}
		if gone {
			continue
		}
		if err := l.renew(ctx); err != nil {
			return 0, err
		}
		select {
		case <-time.After(conflictRetry):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// tryCreate returns either the create revision or the key that is in the way.
func (r *Registrar) tryCreate(ctx context.Context, l *lease) (int64, *keyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := r.cfg.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(r.key()), "=", 0)).
		Then(clientv3.OpPut(r.key(), r.value, clientv3.WithLease(l.id))).
		Else(clientv3.OpGet(r.key())).
		Commit()
	if err != nil {
		return 0, nil, err
	}
	if resp.Succeeded {
		return resp.Header.Revision, nil, nil
	}
	kv := resp.Responses[0].GetResponseRange().Kvs[0]
	return 0, &keyValue{value: kv.Value, modRevision: kv.ModRevision, createRevision: kv.CreateRevision, lease: clientv3.LeaseID(kv.Lease)}, nil
}

// keyValue is a key as it was read.
type keyValue struct {
	value                       []byte
	modRevision, createRevision int64
	lease                       clientv3.LeaseID
}

// judge decides about a key that is in the way: gone tells that it has been
// removed, or never was in the way.
func (r *Registrar) judge(ctx context.Context, l *lease, other *keyValue, waiting *bool) (gone bool, err error) {
	var record storagev1.RegistrationRecord
	if err := proto.Unmarshal(other.value, &record); err != nil {
		return false, fmt.Errorf("read the registration %s in etcd: %w; delete the key if no other process runs with this id", r.key(), err)
	}
	if err := CheckFormat(r.key(), record.GetFormatVersion()); err != nil {
		return false, err
	}
	them := Target{
		Kind: r.cfg.Kind, Address: record.GetAddress(),
		Process: &typev1.Process{Id: record.GetProcess().GetId(), Incarnation: record.GetProcess().GetIncarnation()},
	}
	verdict := Replaced
	if them.Process.GetIncarnation() != r.cfg.Process.GetIncarnation() {
		verdict = r.cfg.Prober.Probe(ctx, them)
	}
	switch {
	case verdict == Alive:
		return false, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID,
			"%s %d is running already, at %s; stop it, or give this process another node.id",
			KindName(r.cfg.Kind), r.cfg.Process.GetId(), record.GetAddress()).With("address", record.GetAddress())
	case verdict.Dead():
		// One's own key under an earlier lease, whose transaction was thought to
		// have failed, is removed as well: the new key must be younger.
		r.cfg.Logger.Info("removing the registration of an earlier process", "address", record.GetAddress(), "reason", verdict.String())
		return r.remove(ctx, other.modRevision)
	}
	if !*waiting {
		*waiting = true
		r.cfg.Logger.Warn("another process is registered with this id and does not answer; waiting for its lease to run out", "address", record.GetAddress())
	}
	return false, nil
}

// remove deletes the key if it is still the one that was judged.
func (r *Registrar) remove(ctx context.Context, modRevision int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := r.cfg.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(r.key()), "=", modRevision)).
		Then(clientv3.OpDelete(r.key())).
		Commit()
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

func (r *Registrar) key() string { return r.cfg.Keys.Registration(r.cfg.Kind, r.cfg.Process.GetId()) }

func (r *Registrar) record() *storagev1.RegistrationRecord {
	handshake := rpc.LocalHandshake()
	record := &storagev1.RegistrationRecord{
		FormatVersion:   FormatVersion,
		Process:         &storagev1.ProcessRef{Id: r.cfg.Process.GetId(), Incarnation: r.cfg.Process.GetIncarnation()},
		Address:         r.cfg.Address,
		Rack:            r.cfg.Rack,
		SoftwareVersion: handshake.GetSoftwareVersion(),
	}
	for _, f := range handshake.GetFeatures() {
		record.Features = append(record.Features, &storagev1.FeatureRecord{Name: f.GetName(), MinVersion: f.GetMinVersion(), MaxVersion: f.GetMaxVersion()})
	}
	return record
}

// troubleLog logs that something fails once, and once that it works again. One
// goroutine uses it.
type troubleLog struct {
	logger  *slog.Logger
	what    string
	failing bool
}

func (t *troubleLog) report(err error) {
	switch {
	case err != nil && !t.failing:
		t.failing = true
		t.logger.Warn("etcd trouble, retrying until it passes", "for", t.what, "error", err)
	case err == nil && t.failing:
		t.failing = false
		t.logger.Info("etcd works again", "for", t.what)
	}
}
