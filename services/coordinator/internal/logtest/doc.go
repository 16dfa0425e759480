// Package logtest is a shard's log in memory, for tests. The caller's duties: make
// a Log, Seed it with what an earlier owner left, set faults with Fault and Hold,
// and give it to a shard. It refuses fences and sequences as the partition's leader
// does.
package logtest
