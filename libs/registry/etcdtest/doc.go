// Package etcdtest runs an etcd server inside a test.
//
// The caller's duties: call [Start] with the test, and close every client of its
// own before the test ends. The server goes with the test. Tests that take etcd
// away and bring it back use [StartServer].
package etcdtest
