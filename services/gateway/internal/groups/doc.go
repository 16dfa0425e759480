// Package groups holds the pure decisions behind the gateway's admin calls about
// consumer groups: where a reset goes (Plan), how fast a group gets on (Rates), and
// what holds it back (HeldBack). It asks nobody and has no clock; the handlers bring
// what coordinators and brokers told.
//
// A caller's duties, in order: gather positions, log starts and visible ends of every
// partition concerned, with -1 for what is not known; for a reset, resolve places and
// timestamps to offsets and give them to Plan; for rates, note one look after the
// other in a Rates, which may be shared between goroutines, or compare two looks with
// Between.
package groups
