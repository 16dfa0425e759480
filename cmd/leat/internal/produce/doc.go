// Package produce turns an input into records and hands them to a gateway.
//
// A caller makes an Input over the bytes (NewLines or NewJSON), then calls Run
// with it; Run reads, sends, resends what a broken stream left unanswered, and
// tells what became of each record, in any order and exactly once, through
// Config.Result. A record whose earlier attempt ended without an answer may be
// in the log twice; its result says so.
package produce
