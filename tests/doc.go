// Package tests is the module of the tests that look at Leat from outside: the
// rules of the house (house) and whole meshes of real processes (cluster).
// The folder interop is a module of its own: it alone depends on another client.
package tests
