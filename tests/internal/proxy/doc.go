// Package proxy is a network that tests can break: TCP proxies in the test's own
// process, which know who calls by the address that a connection comes from.
// Nothing of it needs root or the system's packet filter.
//
// The caller's duties, in order: New; Host for each address that processes dial
// from, so that connections get a name at their beginning (who has none is
// called Client); Listen for each process, which then advertises the proxy's
// address instead of its own; Cut, Stall, Delay and Heal pairs of names at will;
// Close, which waits for all goroutines.
//
// A process that is not there has to refuse connections, since that proves to
// others that it is dead. So Down is called when a process ends; after Up a proxy
// accepts as soon as its target does. Should it find by itself that its target
// refuses, it resets the connection that it was asked to carry and refuses others
// until the target accepts again.
package proxy
