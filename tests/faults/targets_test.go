package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/rig"
)

// The roles that faults are aimed at.
const (
	leaderRole      = "leader"
	followerRole    = "follower"
	controllerRole  = "controller"
	standbyRole     = "standby"
	coordinatorRole = "coordinator"
	gatewayRole     = "gateway"
	etcdLeaderRole  = "etcd leader"
	etcdMemberRole  = "etcd member"
)

func roles() []string {
	return []string{leaderRole, followerRole, controllerRole, standbyRole, coordinatorRole, gatewayRole, etcdLeaderRole, etcdMemberRole}
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }

// one chooses one of the processes, among those that run; "": none does.
func (n *nemesis) one(names ...string) string {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !n.r.Running(name) })
	if len(names) == 0 {
		return ""
	}
	return names[n.rng.IntN(len(names))]
}

// target finds a process that has a role now; "": none does.
func (n *nemesis) target(role string) string {
	switch role {
	case leaderRole, followerRole:
		leader, followers := n.replicas(n.l.topic, n.rng.IntN(n.l.parts))
		if role == leaderRole {
			return n.one(leader)
		}
		return n.one(followers...)
	case controllerRole:
		return n.one(n.controller())
	case standbyRole:
		leading := n.controller()
		return n.one(slices.DeleteFunc(n.r.Names(rig.Controller), func(s string) bool { return s == leading })...)
	case coordinatorRole:
		return n.one(n.coordinator())
	case gatewayRole:
		return n.one(n.r.Names(rig.Gateway)...)
	case etcdLeaderRole:
		return n.one(n.etcdLeader())
	default:
		leading := n.etcdLeader()
		return n.one(slices.DeleteFunc(n.r.Names(rig.Etcd), func(s string) bool { return s == leading })...)
	}
}

func brokerName(id int32) string { return fmt.Sprintf("broker-%d", id) }

// partition is what the metadata tell of a partition now; false: nobody tells.
func (n *nemesis) partition(topic string, number int) (client.Partition, bool) {
	ctx, cancel := context.WithTimeout(n.l.ctx, 5*time.Second)
	defer cancel()
	_ = n.l.client.Metadata().Refresh(ctx) // what is known will do
	t, err := n.l.client.Metadata().Topic(ctx, topic)
	if err != nil || number >= len(t.Partitions) {
		return client.Partition{}, false
	}
	return t.Partitions[number], true
}

// replicas names a partition's leader and the others that hold it.
func (n *nemesis) replicas(topic string, number int) (leader string, followers []string) {
	p, ok := n.partition(topic, number)
	if !ok || p.Leader < 0 {
		return "", nil
	}
	for _, id := range p.Replicas {
		if id != p.Leader {
			followers = append(followers, brokerName(id))
		}
	}
	return brokerName(p.Leader), followers
}

// controller names the controller that leads, as its metrics say.
func (n *nemesis) controller() string {
	for _, name := range n.r.Names(rig.Controller) {
		if n.r.Running(name) {
			ctx, cancel := context.WithTimeout(n.l.ctx, time.Second)
			text := n.r.Metrics(ctx, name)
			cancel()
			if strings.Contains(text, "\nleat_controller_leading 1") {
				return name
			}
		}
	}
	return ""
}

// coordinator names the owner of the group's shard.
func (n *nemesis) coordinator() string {
	ctx, cancel := context.WithTimeout(n.l.ctx, 5*time.Second)
	defer cancel()
	t, err := n.l.client.Metadata().Topic(ctx, client.OffsetsTopic)
	if err != nil || len(t.Partitions) == 0 {
		return n.one(n.r.Names(rig.Coordinator)...)
	}
	owner := t.Partitions[client.GroupShard(n.l.members.group, int32(len(t.Partitions)))].ShardOwner
	if owner < 1 {
		return ""
	}
	return fmt.Sprintf("coordinator-%d", owner)
}

// etcdLeader asks the members, past the proxies.
func (n *nemesis) etcdLeader() string {
	for _, name := range n.r.Names(rig.Etcd) {
		if !n.r.Running(name) {
			continue
		}
		if n.leadsEtcd(n.r.Listens(name)) {
			return name
		}
	}
	return ""
}

func (n *nemesis) leadsEtcd(address string) bool {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: time.Second})
	if err != nil {
		return false
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(n.l.ctx, time.Second)
	defer cancel()
	status, err := c.Status(ctx, address)
	return err == nil && status.Leader == status.Header.GetMemberId()
}
