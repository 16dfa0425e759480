package client

import (
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// case 29: broken streams, silence and every error that may pass leave the position
// where it is, whatever the reset policy; only a genuine out of range resets it.
func TestOnlyAGenuineOutOfRangeResets(t *testing.T) {
	passing := []typev1.ErrorReason{
		reasonNotLeader, reasonLeaderUnavailable, typev1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE,
		typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH, typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH,
		reasonUnreachable, reasonConnectionLost, reasonDeadlineExceeded, reasonUnknownTopic, reasonMetadataBehind,
	}
	for _, policy := range []ResetPolicy{ResetEarliest, ResetLatest, ResetByDuration} {
		inBubble(t, func(t *testing.T) {
			m := newFakeMesh(t, 2)
			topic := m.topic("t", 1, 1<<20)
			m.put(topic, 0, numbered(t, 0, 30)...)
			cfg := ConsumerConfig{Reset: policy}
			if policy == ResetByDuration {
				cfg.ResetDuration = time.Hour
			}
			k := newTestConsumer(t, m.client(Config{}), cfg)
			if err := k.Assign(soon(t), Position{TopicPartition: topic.at(0), NextOffset: 15, LeaderEpoch: -1}); err != nil {
				t.Fatal(err)
			}
			wantNumbers(t, pollNumbers(t, k, 15), 15, 30)
			next := 30
			refusing, refused := reasonInternalBug, 0
			m.mu.Lock()
			m.onFetch = func(*fakeBroker, *brokerv1.FetchPartition) *rpc.Error {
				if refusing == reasonInternalBug {
					return nil
				}
				refused++
				return rpc.Errorf(refusing, "it may pass")
			}
			m.mu.Unlock()
			for round, reason := range passing {
				m.update(func() { // the leader's address is answered by nobody, then moves
					refusing = reason
					p := topic.parts[0]
					p.leader, p.epoch = int32(round%2)+1, p.epoch+1
				})
				<-time.After(10 * time.Second)
				id := int32(round%2) + 1
				m.kill(id)
				m.put(topic, 0, numbered(t, next, next+3)...)
				<-time.After(time.Duration(round) * 5 * time.Second)
				m.startBroker(id)
				m.update(func() { refusing = reasonInternalBug })
				wantNumbers(t, pollNumbers(t, k, 3), next, next+3)
				next += 3
			}
			if refused < len(passing) {
				t.Errorf("%d askings were refused", refused)
			}
			m.mu.Lock()
			if len(m.listed) > 0 {
				t.Errorf("policy %v: offsets were looked up %d times without a reason", policy, len(m.listed))
			}
			m.mu.Unlock()
			// Now the log really begins behind the position.
			m.update(func() {
				p := topic.parts[0]
				p.start, p.end, p.batches = 100, 100, nil
				p.leader, p.epoch = 3-p.leader, p.epoch+1
			})
			m.put(topic, 0, numbered(t, next, next+3)...)
			if policy != ResetEarliest { // to the end: no record says that it is young
				pollNothing(t, k, time.Minute)
				next += 3
				m.put(topic, 0, numbered(t, next, next+3)...)
			}
			wantNumbers(t, pollNumbers(t, k, 3), next, next+3)
		})
	}
}

// By duration: where records are young enough, at the first of them, else at the
// end.
func TestResetByDuration(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 2, 1<<20)
		put := func(partition int32, age time.Duration, value string) {
			at := time.Now().Add(-age)
			b, err := record.NewBuilder(record.DefaultBuilderOptions())
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := b.Append(&record.Record{Value: []byte(value), Timestamp: at.UnixMilli()}); err != nil || !ok {
				t.Fatal(ok, err)
			}
			raw, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			m.put(topic, partition, raw)
		}
		put(0, 3*time.Hour, "old")
		put(0, 30*time.Minute, "young")
		put(0, time.Minute, "younger")
		put(1, 3*time.Hour, "old")
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Reset: ResetByDuration, ResetDuration: time.Hour})
		var all []Position
		for i := range int32(2) {
			all = append(all, Position{TopicPartition: topic.at(i), NextOffset: -1, LeaderEpoch: -1})
		}
		if err := k.Assign(soon(t), all...); err != nil {
			t.Fatal(err)
		}
		if got := pollNumbers(t, k, 2); got[0] != "young" || got[1] != "younger" {
			t.Errorf("%q", got)
		}
		<-time.After(time.Second)
		put(1, 0, "new")
		if got := pollNumbers(t, k, 1); got[0] != "new" {
			t.Errorf("%q", got)
		}
		// A record that comes in while its start is looked for is not passed over.
		m.mu.Lock()
		m.onTime = func(p *fakePart) {
			if p.end == 1 {
				p.store(encode(t, "between"))
			}
		}
		topic.parts[1].end, topic.parts[1].batches = 1, topic.parts[1].batches[:1]
		m.mu.Unlock()
		if err := k.Assign(soon(t), all[1]); err != nil {
			t.Fatal(err)
		}
		if got := pollNumbers(t, k, 1); got[0] != "between" {
			t.Errorf("%q", got)
		}
	})
}

// The member tells the coordinator its policy in full: it is who finds the start.
func TestTheMemberTellsItsResetPolicy(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, _ := oneMesh(t, 3)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{
			Group: "g", Topics: []string{"t"}, Reset: ResetByDuration, ResetDuration: time.Hour, MaxProcessing: 7 * time.Minute, InstanceID: "one",
		})
		pollNothing(t, k, time.Second)
		m.member("g", func(mem *fakeMember) {
			o := mem.open
			if o.ResetPolicy != coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION || o.ResetByDuration.AsDuration() != time.Hour ||
				o.MaxProcessing.AsDuration() != 7*time.Minute || o.LeaveStarts || o.InstanceId != "one" {
				t.Errorf("%v", o)
			}
		})
	})
}

func TestConsumerConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]ConsumerConfig{
		"topics without a group":        {Topics: []string{"t"}},
		"at most once without a group":  {AtMostOnce: true},
		"at most once with auto-commit": {Group: "g", AtMostOnce: true, AutoCommitInterval: time.Second},
		"two racks":                     {ClientRack: "a", Fetch: FetcherConfig{Rack: "b"}},
		"a rack and a replica":          {ClientRack: "a", Fetch: FetcherConfig{Rack: "a", Replica: new(int32)}},
		"no duration":                   {Reset: ResetByDuration},
		"a duration in vain":            {Reset: ResetEarliest, ResetDuration: time.Hour},
		"an unknown policy":             {Reset: ResetByDuration + 1},
		"a negative time":               {Group: "g", Topics: []string{"t"}, MaxProcessing: -1},
	} {
		if err := cfg.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
