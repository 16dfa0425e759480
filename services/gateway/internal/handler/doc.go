// Package handler serves the gateway's public API: it moves messages between the
// gRPC streams, the pure machines of the session package and the client library,
// and answers the admin calls. It decides nothing itself that a session could.
//
// A caller's duties, in order: make a Handler with New, over a client of the mesh
// and an image of its metadata; Register it with a server; when the server drains,
// let its streams end (they watch Config.Draining); Close it once the server has
// stopped, which waits for what runs in the background.
package handler
