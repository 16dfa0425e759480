// Package obs is what a process shows of itself: logs, traces, metrics and
// health. Nothing here is global; what a part logs with, traces with or counts
// in is handed to it.
//
// The caller's duties, in order:
//
//  1. NewLogger, once per component, and hand it down.
//  2. NewTracerProvider, and hand it down; without an endpoint it records
//     nothing and costs nothing. Call its shutdown last, with a deadline, so that
//     the last spans leave.
//  3. NewRegistry, one per component, and register metrics in it.
//  4. NewOpsServer and Run, if an address for it is configured.
package obs
