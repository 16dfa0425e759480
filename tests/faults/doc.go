// Package faults strikes a whole mesh of real processes, by role, from a seed, while
// producers and consumers record what they are told; a checker then says whether a
// log that keeps its promises can have been behind it.
//
// `make faults` runs it: -duration and -seed choose the run, -full also demands that
// every fault, failpoint and transition was seen and a million records were
// acknowledged. The report goes to the folder -report, in words and as a page with
// the timeline. Failpoints need binaries built with -tags failpoints, which make
// sees to; with others, as in `make test`, the faults that need them are left out.
//
// What is checked: no acknowledged record is lost or moved, none is there twice
// under idempotence, each producer's records are in order in each partition, no
// offset ever shows two values to anybody, nobody reads at or above the high
// watermark, the visible end never goes back, a group hands a partition to one
// member at a time and skips nothing, and while a single fault lasts, whoever it does
// not hit directly gets on.
//
// Where the run may mount, the disk of one broker is a small one that is really filled;
// it lives in a mount namespace that ends with the run's processes. Elsewhere full disks
// are made of failpoints only, and the report says so. What has not been seen yet comes
// first and is tried again and again, so that half an hour is enough for everything.
//
// The tests of this package are its only content.
package faults
