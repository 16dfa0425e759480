package faults

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/rig"
)

const (
	// smallDisk is whose disk is filled. One of the readers reads from it.
	smallDisk = "broker-1"
	// aloneTopic has one replica of each partition, so that what a full disk says is
	// what a producer hears.
	aloneTopic = "alone"
	// diskSoon is how soon a broker has to notice that its disk is full, or has room.
	diskSoon = 20 * time.Second
)

// smallDiskBytes is room for several times what a run writes to it. Filled, it is in
// memory.
func smallDiskBytes(d time.Duration) int64 {
	return 256<<20 + int64(d.Seconds())*int64(perSecond())*1200
}

func createAlone(r *rig.Rig) {
	r.CreateTopic(aloneTopic, "--partitions", strconv.Itoa(len(r.Names(rig.Broker))), "--replication-factor", "1",
		"--config", "min.insync.replicas=1")
	r.WaitInSync(aloneTopic, time.Minute)
}

// diskState is what a broker says of its disk; below 0: it does not answer.
func (n *nemesis) diskState(name string) int {
	ctx, cancel := context.WithTimeout(n.l.ctx, 2*time.Second)
	defer cancel()
	for line := range strings.Lines(n.r.Metrics(ctx, name)) {
		if strings.HasPrefix(line, "leat_broker_disk_state{") {
			state, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			if err == nil {
				return int(state)
			}
		}
	}
	return -1
}

const (
	diskIsFull    = 3
	diskIsOffline = 4
)

// awaitDisk waits until a broker's disk is full, or is not, and makes it a problem if
// that takes long.
func (n *nemesis) awaitDisk(name string, full bool) {
	state := -1
	for end := time.Now().Add(diskSoon); time.Now().Before(end); {
		state = n.diskState(name)
		if state >= 0 && (state == diskIsFull) == full && state != diskIsOffline {
			return
		}
		if !n.l.sleep(50 * time.Millisecond) {
			return
		}
	}
	n.l.h.problem("the disk of %s is to be full: %v; after %v its state is %d", name, full, diskSoon, state)
}

// alone is the partition of the topic alone that a broker has; below 0: none.
func (n *nemesis) alone(name string) int {
	for part := range n.r.Names(rig.Broker) {
		if p, ok := n.partition(aloneTopic, part); ok && len(p.Replicas) == 1 && brokerName(p.Replicas[0]) == name {
			return part
		}
	}
	return -1
}

// sendAlone writes a record to the topic alone and says why that failed.
func (n *nemesis) sendAlone(part int) error {
	c := n.l.newClient("alone")
	defer c.Close()
	p, err := c.NewProducer(client.ProducerConfig{Idempotence: client.IdempotenceOff, Linger: -1, DeliveryTimeout: 3 * time.Second})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(n.l.ctx, 10*time.Second)
	defer cancel()
	number := int32(part)
	result := make(chan error, 1)
	err = p.Send(ctx, client.Record{Topic: aloneTopic, Partition: &number, Value: make([]byte, 1000)}, func(r client.Result) { result <- r.Err })
	if err == nil {
		err = <-result
	}
	_ = p.Close(ctx) // it has its outcome
	return err
}

// sendAloneUntil is sendAlone, again until it ends as it should: its broker may have been
// started a moment ago, and an answer may come late.
func (n *nemesis) sendAloneUntil(part int, right func(error) bool) error {
	for end := time.Now().Add(*within); ; {
		if err := n.sendAlone(part); right(err) || time.Now().After(end) || n.l.ctx.Err() != nil {
			return err
		}
	}
}

// readAlone reads the topic alone from its beginning.
func (n *nemesis) readAlone(part int) error {
	c := n.l.newClient("alone")
	defer c.Close()
	ctx, cancel := context.WithTimeout(n.l.ctx, 15*time.Second)
	defer cancel()
	t, err := c.Metadata().Topic(ctx, aloneTopic)
	if err != nil {
		return err
	}
	f, err := c.NewFetcher(client.FetcherConfig{})
	if err != nil {
		return err
	}
	defer f.Close()
	f.Add(client.FetchStart{TopicPartition: client.TopicPartition{TopicID: t.ID, Partition: int32(part)}, Topic: aloneTopic, LastEpoch: -1})
	for {
		e, err := f.Next(ctx)
		if err != nil {
			return err
		}
		found := len(e.Records)
		err = e.Err
		e.Release()
		if err != nil || found > 0 {
			return err
		}
	}
}

// fullDisk fills a broker's disk to the last byte. The broker has to refuse with that
// reason and to serve reads; partitions that others lead have to go on without it; and
// once there is room it has to come back by itself, unless it was started meanwhile and
// refused to.
func (n *nemesis) fullDisk() (strike, bool) {
	name := smallDisk
	part := n.alone(name)
	if n.r.SmallDisk(name) != nil || !n.r.Running(name) || part < 0 {
		return strike{}, false
	}
	if err := n.sendAloneUntil(part, func(err error) bool { return err == nil }); err != nil {
		n.l.h.problem("before the disk of %s is full: %v", name, err)
	}
	var led []int
	for part := range n.l.parts {
		if leader, _ := n.replicas(n.l.topic, part); leader == name {
			led = append(led, part)
		}
	}
	size, err := n.r.FillDisk(name)
	if err != nil {
		n.l.h.problem("fill the disk of %s: %v", name, err)
	}
	s := strike{what: fmt.Sprintf("disk of %s, which leads %v, filled with %d MiB", name, led, size>>20), hit: []string{name}, hold: 8 * time.Second}
	filled := time.Now()
	n.awaitDisk(name, true)
	s.what += fmt.Sprintf(", noticed after %v", time.Since(filled).Round(10*time.Millisecond))
	before := n.l.progress()
	refused := func(err error) bool { return err != nil && strings.Contains(rpc.FromError(err).Error(), "DISK_FULL") }
	if err := n.sendAloneUntil(part, func(err error) bool { return err == nil || refused(err) }); !refused(err) {
		n.l.h.problem("the disk of %s is full, and a record for it ends with %v", name, err)
	}
	if err := n.readAlone(part); err != nil {
		n.l.h.problem("the disk of %s is full, and reading from it ends with %v", name, err)
	}
	n.othersGoOn(name, before)
	if n.rng.IntN(2) == 0 {
		s.what += n.startFull(name)
	}
	s.undo = func() {
		if err := n.r.FreeDisk(name); err != nil {
			n.l.h.problem("free the disk of %s: %v", name, err)
		}
		if !n.r.Running(name) {
			n.r.Up(name)
		}
		n.awaitDisk(name, false)
		n.backFromFull(name, part)
	}
	return s, true
}

// startFull starts a broker while its disk is full to the last byte. It comes up, or
// ends and says what is to be done.
func (n *nemesis) startFull(name string) (what string) {
	n.kill(name)
	n.r.Launch(name)
	for end := time.Now().Add(diskSoon); time.Now().Before(end); {
		if !n.r.Running(name) {
			if said := n.r.LogTail(name, 2000); !strings.Contains(said, "no room") && !strings.Contains(said, "no space") {
				n.l.h.problem("%s does not start on a full disk and does not say why: %s", name, said)
			}
			return ", refused to start so"
		}
		if n.r.Ready(name) == nil {
			return ", started so"
		}
		if !n.l.sleep(50 * time.Millisecond) {
			break
		}
	}
	n.l.h.problem("%s neither comes up on a full disk nor ends, within %v", name, diskSoon)
	return ", did not start so"
}

// othersGoOn demands that the partitions that others lead get on.
func (n *nemesis) othersGoOn(name string, before progressOf) {
	for part := range n.l.parts {
		end := time.Now().Add(*within)
		for n.l.progress().stored[part] < before.stored[part]+3 {
			if leader, _ := n.replicas(n.l.topic, part); leader == name {
				break
			}
			if time.Now().After(end) {
				n.l.h.problem("the disk of %s is full, and partition %d, which it does not lead, stands still", name, part)
				break
			}
			if !n.l.sleep(50 * time.Millisecond) {
				return
			}
		}
	}
}

// backFromFull demands that a broker whose disk has room again takes records and
// joins every in-sync set that it was in, by itself.
func (n *nemesis) backFromFull(name string, part int) {
	if err := n.sendAloneUntil(part, func(err error) bool { return err == nil }); err != nil {
		n.l.h.problem("the disk of %s has had room for %v, and a record for it ends with %v", name, *within, err)
	}
	for part := range n.l.parts {
		back := n.await(n.l.topic, part, 2**within, func(_ int32, isr, _ []int32) bool {
			p, _ := n.partition(n.l.topic, part)
			holds, in := false, false
			for _, b := range p.Replicas {
				holds = holds || brokerName(b) == name
			}
			for _, b := range isr {
				in = in || brokerName(b) == name
			}
			return in || !holds
		})
		if !back {
			n.l.h.problem("the disk of %s has had room for %v, and it is not in sync in partition %d", name, 2**within, part)
		}
	}
}
