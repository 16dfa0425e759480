package faults

import (
	"context"
	"fmt"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/owners"
)

// members are the members of a group, which come and go.
type members struct {
	l       *load
	group   string
	started int
	running []*member
}

type member struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

const (
	membersAtOnce  = 3
	sessionTimeout = 6 * time.Second
)

func startMembers(l *load, group string) *members {
	m := &members{l: l, group: group}
	for range membersAtOnce {
		m.join()
	}
	return m
}

// join starts one more member.
func (m *members) join() string {
	m.started++
	ctx, cancel := context.WithCancel(m.l.ctx)
	one := &member{name: fmt.Sprintf("member %d", m.started), cancel: cancel, done: make(chan struct{})}
	m.running = append(m.running, one)
	m.l.wait.Go(func() {
		defer close(one.done)
		m.work(ctx, one.name)
	})
	return one.name
}

// leave ends the oldest one.
func (m *members) leave() string {
	one := m.running[0]
	m.running = m.running[1:]
	one.cancel()
	<-one.done
	return one.name
}

// work is the life of a member.
func (m *members) work(ctx context.Context, name string) {
	c := m.l.newClient(name)
	defer c.Close()
	for ctx.Err() == nil {
		if err := m.consume(ctx, c, name); err != nil && ctx.Err() == nil {
			m.l.fail(fmt.Errorf("group: %s: %w", name, err))
			return
		}
	}
}

// consume is one membership.
func (m *members) consume(ctx context.Context, c *client.Client, name string) (err error) {
	o := m.l.group
	numbers := func(parts []client.AssignedPartition) []int {
		list := []int{}
		for _, p := range parts {
			list = append(list, int(p.Partition))
		}
		return list
	}
	k, err := c.NewConsumer(client.ConsumerConfig{
		Group: m.group, Topics: []string{m.l.topic}, Reset: client.ResetEarliest, SessionTimeout: sessionTimeout,
		RebalanceTimeout: time.Minute, AutoCommitInterval: time.Second,
		OnAssigned: func(p []client.AssignedPartition) { o.Assign(name, numbers(p), time.Now()) },
		OnRevoked:  func(p []client.AssignedPartition) { o.Revoke(name, numbers(p)) },
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = k.Close(ctx) // a member that cannot leave is expelled after its session
		o.Revoke(name, nil)
	}()
	for ctx.Err() == nil {
		began := time.Now()
		short, cancel := context.WithTimeout(ctx, 2*time.Second) // it bounds commits of what is revoked, too
		got, err := k.Poll(short, 0)
		waited := short.Err() != nil
		cancel()
		if typed := rpc.FromError(err); err != nil && ctx.Err() == nil {
			if waited && typed.Reason == typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED {
				continue // nothing came
			}
			o.Failed(typed.Reason.String())
			if typed.Action == typev1.Action_ACTION_STOP {
				return err
			}
			continue
		}
		now := time.Now()
		for i := range got {
			r := &got[i]
			o.Deliver(name, int(r.Partition), r.Offset, began, now)
			m.l.h.show(name, int(r.Partition), r.Offset, m.l.h.parse(string(r.Value)))
		}
		m.l.h.grouped(len(got))
	}
	return nil
}

// newOwners judges what the members are told and given.
func newOwners(h *records, partitions int) *owners.Owners {
	return owners.New(partitions, func(format string, args ...any) { h.problem("group: "+format, args...) })
}
