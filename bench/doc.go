// Package bench is the module of the benchmarks: programs that measure Leat
// beside a peer or a limit of the machine in the same run. What they found is
// kept in RESULTS.md with the command that found it.
package bench
