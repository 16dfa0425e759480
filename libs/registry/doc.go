// Package registry is what every process does in etcd: hold a registration key
// under a lease, find controllers, and, for controllers, win and keep the
// election.
//
// The caller's duties, in order: make one client with [NewEtcd] and close it
// last; listen on the address that is to be registered; run a [Registrar] for
// as long as the process lives, and stop the process if Run returns an error.
// A controller also runs an [Election] and makes every write of metadata through
// the [Term] it is given, calling Settle whenever an outcome is unknown.
//
// Holding a lease is a sign of life, never a permission: what may be done is
// decided by transactions that compare revisions. etcd being away is no error
// here; everything retries, and says so once per change of state.
package registry
