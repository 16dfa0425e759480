// Package consume reads topics through a gateway and prints their records.
//
// A caller fills a Config and calls Run, which prints each record once, follows
// the stream through restarts of the gateway and the coordinator, gives up
// partitions that the group wants elsewhere, and commits what was printed, and
// never more, before it returns. The output is written beside that: one that nobody
// reads holds up the records, within the credit, and neither stream nor membership.
package consume
