// Package rig runs meshes that tests can break at will: each service in a life of
// its own, every connection between two of them, and to etcd, through a proxy
// that knows both ends. It needs the binaries of `make build`, and no root, but for
// small disks that can be filled (Options.SmallDisks).
//
// The caller's duties, in order: New, which takes the mesh down when the test ends;
// UpAll and WaitReady; Kill, Pause, Stop, Up, Wipe and the faults of Net at will;
// WaitReady before looking at the end. Methods that fail the test are
// for the test's own goroutine.
//
// A life is a process, or whatever Options.Start makes of it: that is how the same
// tests run with all services in the test's own process.
//
// Process n of a kind listens on and dials from 127.0.K.n, as `leat dev
// --per-process-ip` has it; what it tells others is the proxy's address, which has
// the same port on 127.0.0.1. The command dials from 127.0.0.1: proxy.Client.
package rig
