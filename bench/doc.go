// Package bench is the module of the benchmarks: programs that measure Leat
// beside a peer or a limit of the machine in the same run. What they found is
// kept in RESULTS.md with the command that found it. Failovers are measured where
// meshes are broken, in tests/replication (make bench-failover).
package bench
