// Package tests is the module of the tests that look at Leat from outside: the
// rules of the house (house), whole meshes of real processes (cluster), what they
// do when processes, connections and disks fail (replication, faults), and meshes
// simulated from a seed (simulation). The folder interop is a module of its own:
// it alone depends on another client.
package tests
