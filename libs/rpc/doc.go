// Package rpc is how Leat's processes speak gRPC: server and client
// constructors with their interceptors, typed errors, and the payload codec
// that carries record batches without copying them.
//
// The caller's duties, in order:
//
//  1. NewServer, register services on it, SetServing(true) once they can answer,
//     and Run or Serve. NewConnPool or Dial for the other direction.
//  2. Return errors made by Errorf from handlers, wrapped as you like: the
//     outermost *Error in the chain is what the client gets. Anything else leaves
//     as INTERNAL_BUG and is logged at the server, once, with its cause; so do
//     not log what you return. Inside stream messages send ToProto of the same.
//  3. Take errors from calls as *Error (FromError, IsReason, Retryable). Whether
//     something took place is in Outcome, never in the code: retrying an UNKNOWN
//     one may do it twice.
//  4. On streams whose messages have a field `bytes records = 15`, receive with
//     Recv and send with Send. All other messages go through the generated
//     methods.
//  5. End what you own, exactly as below.
//  6. In stream handlers watch Server.Draining, finish what was begun, and return
//     a DRAINING error within StreamGrace.
//
// # Who owns a payload
//
// Recv gives a Payload to its caller, who owns it until Free, or until it is
// handed to Send. Its bytes (Vecs, Bytes) are memory of the connection: read
// only, and gone after Free; whoever keeps some of them copies them. Send takes
// over its payload in every case, also when it fails, and grpc frees it when the
// bytes are on their way or the stream has ended. A payload that was not freed is
// not lost for good, the garbage collector takes it; one that is used after Free
// is a bug that reads other people's bytes.
//
// To pass the same payload to two takers, Clone it once for the second. To send
// what is read from disk, GetBuffer, read into Bytes, and send its Payload.
//
// # What travels with an error
//
// A unary call, or a stream that ends, has a status with exactly one
// ErrorInfo{reason, domain: "leat", metadata}, a RetryInfo where a retry makes
// sense, and the Error message with outcome, action and leader hint. Messages
// are cut so that all of it stays under 8 KiB. docs/errors.md lists the reasons;
// it is generated from the table here, which `leat explain` prints as well.
package rpc
