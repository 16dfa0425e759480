// Package liveness finds out which processes live: a health stream to every
// broker, and, on the leading controller, a connection to every other process.
//
// The caller's duties: make a [Monitor], let it Run for as long as the controller
// lives, tell it with SetLeading whether this controller leads, and ask it with
// Observe, in the leader's loop, what is to be done about what it has found out.
// Where somebody has to be alive at this moment, Probe asks; Probes tells who has
// answered lately, and Hears who keeps up with the metadata. It writes nothing by itself.
package liveness
