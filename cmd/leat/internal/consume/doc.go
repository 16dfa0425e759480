// Package consume reads topics through a gateway and prints their records.
//
// A caller fills a Config and calls Run, which prints each record once, follows
// the stream through restarts of the gateway and the coordinator, gives up
// partitions that the group wants elsewhere, and commits what was printed, and
// never more, before it returns.
package consume
