package broker

import (
	"context"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// reportTimeout bounds one attempt to tell of replicas; another one follows.
const reportTimeout = 10 * time.Second

// report tells the elected controller of replicas that were made or went bad.
func (b *Broker) report(ctx context.Context, vouches []store.Vouch) (metadata.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	resp, err := b.controllers.ReportReplicas(ctx, &controllerv1.ReportReplicasRequest{Broker: b.self, Vouches: vouchProtos(vouches)})
	if err != nil {
		return metadata.Position{}, err
	}
	return metadata.PositionOf(resp.GetPosition()), nil
}

func vouchProtos(vouches []store.Vouch) []*controllerv1.ReplicaVouch {
	out := make([]*controllerv1.ReplicaVouch, len(vouches))
	for i, v := range vouches {
		out[i] = &controllerv1.ReplicaVouch{
			DiskId: v.DiskID, TopicId: v.Key.Topic.Bytes(), Partition: v.Key.Partition, LastEpoch: v.LastEpoch, EndOffset: v.End, Verdict: verdict(v.Verdict),
		}
	}
	return out
}

func verdict(v store.Verdict) controllerv1.ReplicaVerdict {
	switch v {
	case store.Intact:
		return controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT
	case store.Cut:
		return controllerv1.ReplicaVerdict_REPLICA_VERDICT_CUT
	case store.UncleanOS:
		return controllerv1.ReplicaVerdict_REPLICA_VERDICT_UNCLEAN_OS
	case store.Missing:
		return controllerv1.ReplicaVerdict_REPLICA_VERDICT_MISSING
	}
	return controllerv1.ReplicaVerdict_REPLICA_VERDICT_CORRUPT
}
