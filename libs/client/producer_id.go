package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// partitionSequence is where a producer id stands in a partition.
type partitionSequence struct {
	epoch int16 // below 0: the id is spent there
	next  int32
}

// producerID is a producer id of this client's own.
type producerID struct {
	id    int64
	epoch int16 // to begin with, in partitions where it was not used yet
	// parts is where it was left in partitions by producers that were closed.
	parts map[TopicPartition]partitionSequence
}

// in is where the id stands in a partition.
func (i *producerID) in(tp TopicPartition) partitionSequence {
	if at, ok := i.parts[tp]; ok {
		return at
	}
	return partitionSequence{epoch: i.epoch}
}

// maxRememberedSequences bounds what is kept of one id; beyond it the id is not
// used again.
const maxRememberedSequences = 50_000

// producerIDs keeps the ids of closed producers for later ones, so that a process
// that makes and closes producers all the time uses as few ids as it has producers
// at one time: brokers remember every id for as long as a day.
type producerIDs struct {
	mu   sync.Mutex
	free []*producerID
}

func (p *producerIDs) take() *producerID {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return nil
	}
	last := len(p.free) - 1
	id := p.free[last]
	p.free = p.free[:last]
	return id
}

func (p *producerIDs) give(id *producerID) {
	if len(id.parts) > maxRememberedSequences {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, id)
}

// producerIDTimeout is how long one broker may take to hand out an id.
const producerIDTimeout = 3 * time.Second

// newProducerID asks the brokers for an id until one gives it: once each.
func (c *Client) newProducerID(ctx context.Context) (*producerID, error) {
	brokers := slices.Clone(c.source.Brokers())
	if len(brokers) == 0 {
		if err := c.source.Refresh(ctx); err != nil {
			return nil, err
		}
		if brokers = slices.Clone(c.source.Brokers()); len(brokers) == 0 {
			return nil, rpc.Errorf(reasonUnreachable, "no broker is known that could hand out a producer id").WithOutcome(outcomeNotDone)
		}
	}
	rand.Shuffle(len(brokers), func(i, j int) { brokers[i], brokers[j] = brokers[j], brokers[i] })
	addrs := make([]string, len(brokers))
	for i, b := range brokers {
		addrs[i] = b.Addr
	}
	resp, _, errs := hedged(ctx, addrs, func(ctx context.Context, addr string) (*brokerv1.InitProducerIdResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, producerIDTimeout)
		defer cancel()
		return askBroker(ctx, c, addr, func(ctx context.Context, b brokerv1.LogServiceClient) (*brokerv1.InitProducerIdResponse, error) {
			return b.InitProducerId(ctx, &brokerv1.InitProducerIdRequest{ClientId: c.cfg.ClientID})
		})
	})
	if resp == nil {
		last := rpc.FromError(errs[len(errs)-1])
		return nil, rpc.Errorf(last.Reason, "no broker hands out a producer id, which idempotent producing needs: %w", errors.Join(errs...)).WithOutcome(outcomeNotDone)
	}
	return &producerID{id: resp.ProducerId, epoch: int16(resp.ProducerEpoch), parts: make(map[TopicPartition]partitionSequence)}, nil
}

// producerIdentity is the id of a producer, and those it had before.
type producerIdentity struct {
	mu      sync.Mutex
	all     []*producerID // the last one is the present one
	seeking bool
	why     *rpc.Error // of the last failure to get one
}

// provideID gives a partition that wants one an id, or has it fetched. The lock of
// the partition is held.
func (p *Producer) provideID(pp *producerPartition) (given bool) {
	i := &p.identity
	i.mu.Lock()
	defer i.mu.Unlock()
	if n := len(i.all); n > 0 && i.all[n-1].id != pp.acc.ids.id {
		pp.acc.ids.adopt(i.all[n-1].id, i.all[n-1].in(pp.tp))
		if !pp.acc.ids.wantsID() {
			return true
		}
	}
	if !i.seeking && p.ctx.Err() == nil {
		i.seeking = true
		p.wg.Go(p.seekID)
	}
	return false
}

// seekID gets an id, however long it takes, and gives it to those who wait for it.
func (p *Producer) seekID() {
	for failures := 1; ; failures++ {
		id := p.client.ids.take()
		var err error
		if id == nil {
			id, err = p.client.newProducerID(p.ctx)
		}
		i := &p.identity
		i.mu.Lock()
		if err == nil {
			i.all, i.seeking, i.why = append(i.all, id), false, nil
		} else {
			i.why = rpc.FromError(err)
		}
		i.mu.Unlock()
		if err == nil {
			break
		}
		if !sleep(p.ctx, p.client.cfg.backoff(failures)) {
			return
		}
	}
	for _, part := range p.partitions() {
		part.step()
	}
}

// whyNoID is what stands in the way of a producer id; nil: nothing is known.
func (p *Producer) whyNoID() *rpc.Error {
	p.identity.mu.Lock()
	defer p.identity.mu.Unlock()
	return p.identity.why
}

// leaveIDs gives the ids back, with where they stand. Nothing is sent any more.
func (p *Producer) leaveIDs() {
	type left struct {
		id int64
		tp TopicPartition
		at partitionSequence
	}
	var all []left
	for _, part := range p.partitions() {
		part.mu.Lock()
		if ids := part.acc.ids; ids != nil && ids.id >= 0 {
			all = append(all, left{ids.id, part.tp, part.acc.leaveOff()})
		}
		part.mu.Unlock()
	}
	i := &p.identity
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, id := range i.all {
		for _, l := range all {
			if l.id == id.id {
				id.parts[l.tp] = l.at
			}
		}
		p.client.ids.give(id)
	}
	i.all = nil
}
