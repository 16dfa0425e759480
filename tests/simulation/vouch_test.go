package simulation

import (
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
)

// vouchStep has a broker tell a controller of itself, or of its replicas.
func (w *world) vouchStep() {
	if b := w.find(func(b *broker) bool { return b.runs() && b.adopted && !b.regressed && b.of != nil }); b != nil {
		b.announce()
	}
}

// announce sends registration and vouch, or news of replicas.
func (b *broker) announce() {
	w := b.w
	_, election, ok := b.of.electionAt(b.rev)
	rec, has := b.of.brokerAt(b.id, b.rev)
	shown := has && rec.Process == b.life() && !rec.Fenced
	if b.vouchAt > w.now {
		return
	}
	switch {
	case !shown || ok && b.vouched != election.create:
		b.sendVouch(election.create)
	case b.onRecord():
		b.report()
	}
}

// sendVouch sends registration and vouch to the elected controller.
func (b *broker) sendVouch(election int64) {
	w := b.w
	b.vouchAt = w.now + callTimeout/2
	reg := cluster.BrokerRegistration{Process: b.life(), Address: "h", Vouches: b.vouches()}
	seen, of := b.rev, b.of
	w.ask(b, "vouch", func(c *controller, answer func(func())) {
		if c.of != of && c.of != nil || c.state == nil || c.of.rev < seen {
			if c.of != nil && c.of.rev < seen {
				answer(func() { b.regress("a controller knows nothing of what it has seen") })
			}
			return
		}
		if c.rev < seen {
			return // it is behind; the broker asks again
		}
		for _, v := range reg.Vouches {
			if p := c.state.Partition(v.Topic, v.Partition); p != nil && v.LastEpoch > p.Value.LeaderEpoch {
				answer(func() { b.regress("its records are of later epochs than the metadata knows") })
				return
			}
		}
		if r := c.state.Registration(cluster.KindBroker, b.id); r != nil && r.Value.Process == reg.Process {
			c.state.SetVouches(reg)
			c.tidied = -1
		}
		c.do(&command{name: "register broker", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
			return cluster.RegisterBroker(s, reg)
		}, done: func(rev int64, err error) {
			if err == nil {
				answer(func() { b.vouched = election })
			}
		}})
	}, func() {})
}

// report tells the controller of replicas that were made, or went bad.
func (b *broker) report() {
	w := b.w
	var told []cluster.Vouch
	for _, r := range b.replicas {
		v := cluster.Vouch{Topic: r.id.Topic, Partition: r.id.Number, LastEpoch: -1, Verdict: cluster.Corrupt}
		if at, bad := b.bad[r.id]; bad {
			if at > 0 {
				if b.rev >= at {
					delete(b.bad, r.id) // it shows
					b.apply()
					return
				}
				continue
			}
			if r.log != nil {
				v.LastEpoch, v.End = r.log.LatestEpoch(), r.log.EndOffset()
			}
			told = append(told, v)
			continue
		}
		rec, ok := b.of.partitionAt(r.id, b.rev)
		if ok && rec.Leader.IsZero() && r.log != nil && r.verdict == partition.Intact && r.log.LatestEpoch() < 0 && r.log.EndOffset() == 0 && !b.diskBad {
			v.Verdict = cluster.Intact
			told = append(told, v)
		}
	}
	if len(told) == 0 {
		return
	}
	b.vouchAt = w.now + callTimeout/2
	life := b.life()
	w.ask(b, "report", func(c *controller, answer func(func())) {
		if c.create == 0 || !c.opened || c.state == nil {
			return
		}
		c.state.NoteReplicas(life, told)
		c.tidied = -1
		c.do(&command{name: "report replicas", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
			return cluster.ReportReplicas(s, life, told)
		}, done: func(rev int64, err error) {
			if err != nil {
				return
			}
			answer(func() {
				for _, v := range told {
					id := cluster.PartitionID{Topic: v.Topic, Number: v.Partition}
					if at, bad := b.bad[id]; bad && at == 0 && v.Verdict != cluster.Intact {
						b.bad[id] = rev
					}
				}
			})
		}})
	}, func() {})
}
