// Package handler answers the broker's gRPC services: it checks shapes, finds the
// replica, and translates between messages and the replica's calls. What a
// partition does is decided in the core that the replica runs.
//
// The caller's duties, in order: make the handlers with New, register them on the
// server before it serves, and call Open once the replicas may be used; until
// then they answer STARTING. Handlers of streams end when the server drains.
package handler
