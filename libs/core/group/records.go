package group

// Kind is the kind of a record of a shard.
type Kind uint8

// The kinds of records.
const (
	KindGroup Kind = iota + 1
	KindMember
	KindTarget
	KindOffset
	KindLedger
	KindBarrier
)

// Key identifies a record; the newest value of a key holds.
type Key struct {
	Kind   Kind
	Group  string
	Member string
	Part   Part
	Slot   int32
}

// Value is what a key holds: one of the types below, or nil for a tombstone.
type Value interface{ isValue() }

// KV is a record of the shard.
type KV struct {
	Key   Key
	Value Value
}

// GroupValue is a group.
type GroupValue struct {
	Epoch    int64
	Assignor string
	Deleting bool
}

// MemberValue is a member and what it holds.
type MemberValue struct {
	InstanceID       string
	Topics           []string
	Pattern          string
	Attach           int64
	Epoch            int64
	Owned            []Owned // in order, revoking ones included
	SessionTimeout   int64   // milliseconds
	RebalanceTimeout int64   // milliseconds
	ClientID         string
	ClientHost       string
	// ReplacedBy is the member that took over the instance id; empty: none. A
	// replaced member commits nothing.
	ReplacedBy string
}

// TargetValue is what a member should hold.
type TargetValue struct {
	Epoch int64
	Parts []Part // in order
}

// OffsetValue is a committed offset.
type OffsetValue struct {
	NextOffset  int64
	LeaderEpoch int32
	Metadata    string
	// Member, Attach and Sequence say whose commit it was. Attach 0: nobody's, an
	// administrator or the coordinator wrote it.
	Member   string
	Attach   int64
	Sequence int64
	CommitMs int64
}

// LedgerValue explains a rebalance, or a reset of offsets.
type LedgerValue struct {
	Epoch  int64
	Cause  string
	TimeMs int64
	Moved  int32
	Moves  []Move // as many as fit, in order
	// FinishedMs is when every member held what it should, in milliseconds since the
	// epoch; 0: not yet, or another rebalance began first.
	FinishedMs int64
	// LongestMs and TotalMs tell how long partitions were without an owner: from when
	// the former one gave up, had stopped handing out, or was last heard of, until the
	// next one had taken the partition in.
	LongestMs, TotalMs int64
}

func (GroupValue) isValue()  {}
func (MemberValue) isValue() {}
func (TargetValue) isValue() {}
func (OffsetValue) isValue() {}
func (LedgerValue) isValue() {}

// ledgerSlots is how many rebalances are remembered.
const ledgerSlots = 64

func groupKey(g string) Key           { return Key{Kind: KindGroup, Group: g} }
func memberKey(g, m string) Key       { return Key{Kind: KindMember, Group: g, Member: m} }
func targetKey(g, m string) Key       { return Key{Kind: KindTarget, Group: g, Member: m} }
func offsetKey(g string, p Part) Key  { return Key{Kind: KindOffset, Group: g, Part: p} }
func ledgerKey(g string, s int32) Key { return Key{Kind: KindLedger, Group: g, Slot: s} }

// sizeOf is about what a record takes, in bytes.
func sizeOf(k Key, v Value) int {
	const fixed, part = 64, 32
	n := fixed + len(k.Group) + len(k.Member)
	switch v := v.(type) {
	case OffsetValue:
		n += len(v.Metadata) + len(v.Member)
	case TargetValue:
		n += part * len(v.Parts)
	case LedgerValue:
		n += len(v.Cause) + part*len(v.Moves)
	case MemberValue:
		n += part*len(v.Owned) + len(v.Pattern) + len(v.ClientID) + len(v.ClientHost)
		for _, t := range v.Topics {
			n += len(t)
		}
	}
	return n
}
