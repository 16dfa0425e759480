// Package session holds the public streams as pure state machines: what a client
// sent and what the mesh answered go in, messages and things to do come out.
// There are no goroutines, no clock and no I/O in here, so every state can be
// tested against every message by a table.
//
// A caller's duties, in order: make a machine with NewProduce or NewConsume; feed
// it from one goroutine, with the time at hand; after each event carry out the
// effects in order (TakeEffects), and ask it when it wants to be woken (WakeAt),
// whether it may be given another client message (WantsRead) and, for Consume,
// whether it takes more data (WantsData); send what Next returns; stop when Ended
// says so. Messages are handed over: the machine may keep them until it answered.
package session
