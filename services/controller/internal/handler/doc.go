// Package handler serves a controller's gRPC services: the metadata stream, what
// other services ask of the controller, and its admin service. Handlers
// translate; the core decides and the loop writes. A standby passes on to the leader
// what other services ask.
//
// The caller's duties: make a [Handler] with everything it works with, Register it
// with a server before that serves, and close Draining when the server drains.
package handler
