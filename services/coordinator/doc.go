// Package coordinator is the group coordinator: it keeps consumer groups and their
// committed offsets in the shards of __consumer_offsets that the controller assigns
// to it, and serves GroupService.
//
// The caller's duties, in order: take DefaultConfig and change what differs; New;
// Run until it is to stop; read Addr and wait for Ready meanwhile. The coordinator
// keeps nothing on its own disk: everything it answers for is in the log of its
// shards.
//
// Where it reaches etcd and the controllers and no broker that leads its shards, it
// gives its registration up for a while, so that another coordinator gets them:
// docs/decisions/0019-standing-aside.md.
//
// Delivery guarantees, the frames of Join, and what each error asks of a client are
// in the package documentation of internal/handler; the rules of groups in that of
// libs/core/group.
package coordinator
