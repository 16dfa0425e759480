// Package lifecycle starts the parts of a process in order and stops them in
// reverse. It knows neither gRPC nor the generated code.
//
// The caller's duties, in order:
//
//  1. Make a Group with New.
//  2. Add the parts, each after what it needs. A part's run blocks until its
//     context ends, calls ready once when others may rely on it, and returns nil
//     when it stopped because its context ended.
//  3. Call Run, once. It returns when every part has returned.
//
// A part that fails, or returns before it was asked to, ends the group: that is
// a returned value, never an exit of the process.
package lifecycle
