package metadata

import (
	"cmp"
	"fmt"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
)

// Position orders states of the metadata: by generation, then by etcd revision.
// The zero position is before every other.
type Position struct {
	Generation int64 // raised when the metadata was restored from a backup
	Revision   int64 // of etcd, within the generation
}

// PositionOf reads the message form; nil is the zero position.
func PositionOf(p *controllerv1.Position) Position {
	return Position{Generation: p.GetGeneration(), Revision: p.GetRevision()}
}

// PositionOfClient reads the form that clients send; nil is the zero position.
func PositionOfClient(p *brokerv1.MetadataPosition) Position {
	return Position{Generation: p.GetGeneration(), Revision: p.GetRevision()}
}

// Proto is the message form.
func (p Position) Proto() *controllerv1.Position {
	return &controllerv1.Position{Generation: p.Generation, Revision: p.Revision}
}

// ClientProto is the form for clients and health answers.
func (p Position) ClientProto() *brokerv1.MetadataPosition {
	return &brokerv1.MetadataPosition{Generation: p.Generation, Revision: p.Revision}
}

// Compare is -1, 0 or 1.
func (p Position) Compare(q Position) int {
	if c := cmp.Compare(p.Generation, q.Generation); c != 0 {
		return c
	}
	return cmp.Compare(p.Revision, q.Revision)
}

// Before tells whether p is older than q.
func (p Position) Before(q Position) bool { return p.Compare(q) < 0 }

// String is for logs: generation/revision.
func (p Position) String() string { return fmt.Sprintf("%d/%d", p.Generation, p.Revision) }
