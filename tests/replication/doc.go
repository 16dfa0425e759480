// Package replication proves that nothing acknowledged is lost, whatever process,
// connection or disk fails. Its tests run whole meshes behind breakable
// connections (package rig) and judge by what producers were told and consumers
// were given (package history).
//
// Most tests have two forms: real processes, and all services in the test's own
// process with disks in memory, where power cuts and disk faults are possible.
// -forms chooses. `make test` runs each with few repetitions; -full, as in
// `make faults`, runs the counts that the project promises. -seed repeats the
// choices of a run.
//
// The tests of this package are its only content.
package replication
