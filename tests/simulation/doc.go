// Package simulation runs a whole mesh in one goroutine from one seed: the real
// partition, cluster and group cores and the real commitlog, over disks, a network,
// an etcd and a clock that are simulated and that fail as the seed says.
//
// A walk is a row of steps. Each does one thing that may happen next: a message
// arrives, a disk carries out one operation, a controller makes one transaction, time
// passes, something breaks. Each step draws from a seed of its own, so that leaving
// steps out of a walk changes nothing about the others but what follows from them:
// that is how a failing walk is shrunk. After the steps with faults come steps without,
// in which the mesh must become whole again.
//
// Everything that must always hold is looked at after the step that could have broken
// it: the assertions of the cores, the promises about records (truth_test.go,
// kept_test.go where compaction and retention take some away), the rules of the metadata
// (records_test.go). What is simulated by hand (the loops around the cores, which
// in the services are goroutines and gRPC) keeps to the duties that the doc.go of each
// package states.
//
// What may break: processes, hosts, disks (lost, rotten, failing, hanging, full for a
// while), the network, etcd and leases. What goes on beside that: topics are compacted by
// the real cleaner, let go of old segments by the real retention, are deleted and made
// again under the same name; partitions are moved, leaders elected, records deleted.
//
// To use it: go test ./simulation runs a fixed set of seeds; with -sim.seed=S it
// replays one and tells its story, with -sim.seeds=N or -sim.duration=D it runs many,
// and shrinks and tells the first that fails.
package simulation
