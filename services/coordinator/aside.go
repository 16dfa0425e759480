package coordinator

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

// standing is how long a registration has to last before earlier times aside count no
// more.
const standing = 2 * time.Minute

// aside decides when the coordinator should stand aside: give its registration up
// although it could keep it, so that the controller gives its shards to another. It
// should where it reaches etcd and the controllers, and none of the brokers that lead
// its shards, while another coordinator may. One goroutine uses it.
type aside struct {
	patience time.Duration // how long no log may have answered
	backoff  rpc.Backoff   // between coming back and standing aside again
	prober   *registry.Prober
	watcher  *metadata.Watcher
	manager  *shard.Manager
	self     *typev1.Process
	logger   *slog.Logger

	back    time.Time // when it last came back; zero: never
	holdOff time.Duration
}

// keepRegistered keeps the registration until ctx ends, standing aside where that
// helps the groups.
func (c *Coordinator) keepRegistered(ctx context.Context) error {
	for {
		registered, cancel := context.WithCancel(ctx)
		unheard := make(chan []registry.Target, 1)
		go func() {
			unheard <- c.aside.wait(registered, func() bool { return c.registrar.Revision() > 0 })
			cancel()
		}()
		err := c.registrar.Run(registered)
		cancel()
		leaders := <-unheard
		if err != nil || ctx.Err() != nil {
			return err
		}
		c.aside.stand(ctx, leaders)
	}
}

// wait waits until it is time to stand aside, and returns the leaders that do not
// answer. It returns nil when ctx ends.
func (a *aside) wait(ctx context.Context, registered func() bool) []registry.Target {
	tick := time.NewTicker(max(a.patience/8, 50*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		since, waiting := a.manager.Silence()
		if !registered() || !a.due(time.Now(), since) || !a.others(a.watcher.Image()) {
			continue
		}
		leaders := a.leaders(a.watcher.Image(), waiting)
		if len(leaders) == 0 || a.anyAnswers(ctx, leaders) || !a.controllerAnswers(ctx) || ctx.Err() != nil {
			continue
		}
		a.logger.Warn("no broker that leads a shard of this coordinator answers; giving the registration up, so that another coordinator gets the shards",
			"silent_for", time.Since(since).Round(time.Millisecond), "shards_waiting", len(waiting), "brokers", addresses(leaders))
		return leaders
	}
}

// due tells whether the logs have been silent for long enough, and the last time
// aside is long enough ago.
func (a *aside) due(now, since time.Time) bool {
	if since.IsZero() || now.Sub(since) < a.patience {
		return false
	}
	return a.back.IsZero() || now.Sub(a.back) >= a.holdOff
}

// returned notes that the coordinator registers again at now. How long it will not
// stand aside again grows with each time, unless the last one is long ago.
func (a *aside) returned(now time.Time, left time.Time) {
	if !a.back.IsZero() && left.Sub(a.back) >= standing {
		a.backoff.Reset()
	}
	a.back, a.holdOff = now, a.backoff.Next()
}

// others tells whether another coordinator is registered. If none is, standing aside
// helps nobody.
func (a *aside) others(image *metadata.Image) bool {
	return slices.ContainsFunc(image.Registrations(kind), func(r *controllerv1.Registration) bool {
		return r.GetProcess().GetId() != a.self.GetId()
	})
}

// leaders lists the brokers that lead the shards. Those that are fenced are left out:
// the controller knows of them, and no coordinator could do better.
func (a *aside) leaders(image *metadata.Image, shards []int32) []registry.Target {
	topic := image.TopicByName(client.OffsetsTopic)
	if topic == nil {
		return nil
	}
	var all []registry.Target
	for _, n := range shards {
		id := topic.Partition(n).GetLeader().GetId()
		known := slices.ContainsFunc(all, func(t registry.Target) bool { return t.Process.GetId() == id })
		b := image.Broker(id)
		if known || b == nil || b.GetFenced() || b.GetAddress() == "" {
			continue
		}
		all = append(all, registry.Target{Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: b.GetBroker(), Address: b.GetAddress()})
	}
	return all
}

// anyAnswers asks all of them at once.
func (a *aside) anyAnswers(ctx context.Context, targets []registry.Target) bool {
	answers := make([]bool, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() {
			v := a.prober.Probe(ctx, t)
			answers[i] = v == registry.Alive || v == registry.Replaced
		})
	}
	wg.Wait()
	return slices.Contains(answers, true)
}

// controllerAnswers tells whether the elected controller is there. Without it nobody
// would hand the shards over, and what the metadata shows may be long past.
func (a *aside) controllerAnswers(ctx context.Context) bool {
	l := a.watcher.Image().ControllerLeader()
	return l != nil && a.anyAnswers(ctx, []registry.Target{{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, Process: l.GetController(), Address: l.GetAddress(),
	}})
}

// stand waits until there is a reason to register again: one of the leaders answers,
// none of them is in force any more, or no other coordinator is left.
func (a *aside) stand(ctx context.Context, leaders []registry.Target) {
	left := time.Now()
	tick := time.NewTicker(max(a.patience/8, 50*time.Millisecond))
	defer tick.Stop()
	reason := ""
	for reason == "" {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		reason = a.reason(ctx, leaders)
	}
	a.returned(time.Now(), left)
	a.logger.Info("registering again", "reason", reason, "aside_for", time.Since(left).Round(time.Millisecond), "not_again_for", a.holdOff)
}

// reason tells why to register again; empty: there is none.
func (a *aside) reason(ctx context.Context, leaders []registry.Target) string {
	image := a.watcher.Image()
	if !a.others(image) {
		return "no other coordinator is registered"
	}
	var inForce []registry.Target
	for _, t := range leaders {
		b := image.Broker(t.Process.GetId())
		if b != nil && !b.GetFenced() && b.GetBroker().GetIncarnation() == t.Process.GetIncarnation() {
			t.Address = b.GetAddress()
			inForce = append(inForce, t)
		}
	}
	switch {
	case len(inForce) == 0:
		return "the brokers that did not answer are fenced or replaced"
	case a.anyAnswers(ctx, inForce) && ctx.Err() == nil:
		return "a broker answers"
	}
	return ""
}

func addresses(targets []registry.Target) []string {
	all := make([]string, 0, len(targets))
	for _, t := range targets {
		all = append(all, t.Address)
	}
	return all
}
