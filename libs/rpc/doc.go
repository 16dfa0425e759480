// Package rpc is how Leat's processes speak gRPC: server and dial constructors
// with their interceptors, typed errors, and the payload codec.
package rpc
