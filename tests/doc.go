// Package tests is the module of the tests that look at Leat from outside: the
// rules of the house (house) and whole meshes of real processes (cluster).
package tests
