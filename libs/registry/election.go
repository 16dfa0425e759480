package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// ElectionConfig says who stands for election.
type ElectionConfig struct {
	Client  *clientv3.Client
	Keys    Keys
	Process *typev1.Process // the controller
	Address string          // host:port, told to everybody
	TTL     time.Duration   // of the lease; whole seconds, at least one
	Prober  *Prober
	Logger  *slog.Logger
}

// standAside is how long a candidate that gave way leaves the election to others,
// which take milliseconds.
const standAside = 2 * time.Second

// Election makes at most one controller lead. Run is called once.
type Election struct {
	cfg     ElectionConfig
	trouble troubleLog
}

// NewElection makes a candidate; nothing happens before Run.
func NewElection(cfg ElectionConfig) *Election {
	return &Election{cfg: cfg, trouble: troubleLog{logger: cfg.Logger, what: "election"}}
}

// Run stands for election until ctx ends, and returns nil then. Each time it has
// won, by a transaction that put the election key, it calls lead and waits for
// it. The context of lead ends when the lease is known to be gone, or with ctx;
// lead also returns when a write tells it ErrDeposed. Then Run gives the
// leadership back and stands again. The only error it returns is *FormatError.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, term *Term)) error {
	value, err := proto.Marshal(&storagev1.ElectionRecord{
		FormatVersion: FormatVersion,
		Controller:    &storagev1.ProcessRef{Id: e.cfg.Process.GetId(), Incarnation: e.cfg.Process.GetIncarnation()},
		Address:       e.cfg.Address,
	})
	if err != nil {
		return fmt.Errorf("encode the election record: %w", err)
	}
	backoff := rpc.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	for ctx.Err() == nil {
		err := e.once(ctx, string(value), lead)
		var format *FormatError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &format):
			return err
		case err == nil:
			backoff.Reset()
			continue
		}
		e.trouble.report(err)
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
		}
	}
	return nil
}

// once waits for its chance, and leads if it wins.
func (e *Election) once(ctx context.Context, value string, lead func(context.Context, *Term)) error {
	incumbent, err := e.read(ctx)
	if err != nil {
		return err
	}
	e.trouble.report(nil)
	if incumbent != nil {
		return e.stand(ctx, incumbent)
	}
	// The lease is taken only now: one taken early may have run out by the time
	// its owner wins.
	l, err := grant(ctx, e.cfg.Client, e.cfg.TTL)
	if err != nil {
		return err
	}
	term, err := e.create(ctx, l, value)
	if err == nil && term != nil {
		e.lead(ctx, l, term, lead)
		defer e.standAside(ctx, term)
	}
	if revokeErr := l.revoke(ctx); revokeErr != nil {
		e.cfg.Logger.Debug("cannot give the election's lease back, it will run out", "error", revokeErr)
	}
	return err
}

// lead leads for one term.
func (e *Election) lead(ctx context.Context, l *lease, term *Term, lead func(context.Context, *Term)) {
	e.cfg.Logger.Info("elected as controller", "election_revision", term.createRevision)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kept := make(chan error, 1)
	go func() {
		err := l.keep(ctx, e.trouble.report, func(context.Context) error { return nil })
		cancel()
		kept <- err
	}()
	lead(ctx, term)
	cancel()
	reason := <-kept
	if err := term.resign(ctx); err != nil {
		reason = errors.Join(reason, err)
	}
	if reason == nil {
		reason = errors.New("it stopped leading by itself")
	}
	e.cfg.Logger.Info("no longer the controller", "election_revision", term.createRevision, "reason", reason)
}

// standAside waits if the candidate gives way.
func (e *Election) standAside(ctx context.Context, term *Term) {
	if !term.givesWay.Load() {
		return
	}
	select {
	case <-time.After(standAside):
	case <-ctx.Done():
	}
}

// create tries to put the election key. The term is nil if somebody else did.
func (e *Election) create(ctx context.Context, l *lease, value string) (*Term, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key := e.cfg.Keys.Election()
	resp, err := e.cfg.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, value, clientv3.WithLease(l.id))).
		Commit()
	if err != nil {
		// Whether the key was put is unknown; giving the lease back removes it.
		return nil, fmt.Errorf("stand for election: %w", err)
	}
	if !resp.Succeeded {
		return nil, nil
	}
	term := &Term{client: e.cfg.Client, key: key, value: value, lease: l.id, createRevision: resp.Header.Revision}
	term.modRevision.Store(resp.Header.Revision)
	return term, nil
}

// incumbent is the election key as read.
type incumbent struct {
	target         Target
	createRevision int64
	readRevision   int64 // of the store when it was read
}

// read looks at the election key; nil: nobody leads.
func (e *Election) read(ctx context.Context) (*incumbent, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key := e.cfg.Keys.Election()
	got, err := e.cfg.Client.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("read the election key: %w", err)
	}
	if len(got.Kvs) == 0 {
		return nil, nil
	}
	var record storagev1.ElectionRecord
	if err := proto.Unmarshal(got.Kvs[0].Value, &record); err != nil {
		return nil, fmt.Errorf("read the election record %s in etcd: %w", key, err)
	}
	if err := CheckFormat(key, record.GetFormatVersion()); err != nil {
		return nil, err
	}
	return &incumbent{
		target: Target{
			Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, Address: record.GetAddress(),
			Process: &typev1.Process{Id: record.GetController().GetId(), Incarnation: record.GetController().GetIncarnation()},
		},
		createRevision: got.Kvs[0].CreateRevision,
		readRevision:   got.Header.Revision,
	}, nil
}

// stand waits until the incumbent's key is gone. If the incumbent is proved dead
// before, it deletes the key: an incumbent that lived after all merely fails its
// next write.
func (e *Election) stand(ctx context.Context, inc *incumbent) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	verdict := make(chan Verdict, 1)
	if inc.target.Process.GetIncarnation() == e.cfg.Process.GetIncarnation() {
		// One's own key, of a leadership that ended unknown.
		verdict <- Replaced
	} else {
		go func() { verdict <- e.cfg.Prober.AwaitDeath(ctx, inc.target) }()
	}
	watch := e.cfg.Client.Watch(clientv3.WithRequireLeader(ctx), e.cfg.Keys.Election(),
		clientv3.WithRev(inc.readRevision+1), clientv3.WithFilterPut())
	for {
		select {
		case resp, ok := <-watch:
			if ok && resp.Err() == nil && len(resp.Events) == 0 {
				continue
			}
			cancel()
			<-verdict
			return resp.Err()
		case v := <-verdict:
			if !v.Dead() {
				return ctx.Err()
			}
			return e.remove(ctx, inc, v)
		}
	}
}

// remove deletes a dead incumbent's key, whatever it was rewritten to.
func (e *Election) remove(ctx context.Context, inc *incumbent, v Verdict) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key := e.cfg.Keys.Election()
	resp, err := e.cfg.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", inc.createRevision)).
		Then(clientv3.OpDelete(key)).
		Commit()
	if err != nil {
		return fmt.Errorf("remove the dead controller's election key: %w", err)
	}
	if resp.Succeeded {
		e.cfg.Logger.Info("removed the dead controller's election key",
			"controller", inc.target.Process.GetId(), "address", inc.target.Address, "reason", v.String())
	}
	return nil
}
