// Package gateway is the service that applications talk to: the public API in any
// language with gRPC. It keeps no state: it batches, partitions and compresses
// records on their way to the brokers, hands records out to consumers, and answers
// admin and metadata requests.
//
// The caller's duties, in order:
//
//  1. DefaultConfig, change what is to differ, Validate.
//  2. New, which listens on nothing that was not given and starts nothing but the
//     listener.
//  3. Run, until its context ends. It serves from the start and answers STARTING,
//     which clients retry, until the mesh's metadata has come.
//  4. Ready is closed once the gateway is registered and knows the mesh; Addr is
//     where it listens.
package gateway
