// Package groups proves what is promised of consumer groups: one owner at a time,
// nothing skipped, fast hand-overs, nothing moved that need not move, and committed
// offsets that are never lost and never go back, whatever process fails. Its tests
// run meshes of real processes behind breakable connections (package rig).
//
// Members are consumers of the client library in the test's own process or, to be
// killed and stopped, in a process of their own; `leat consume`, which goes through
// a gateway; and streams to a gateway.
//
// `make test` runs each test with few repetitions; -full, as in `make test-groups`,
// for as long and with as many members as the project promises. -seed repeats the
// choices of a run.
//
// The tests of this package are its only content.
package groups
