// Package mesh runs whole meshes of real processes for tests, through the leat
// command alone, as a user would.
//
// The binaries come from bin/ of the repository (make build), or from the
// folder that LEAT_BIN names. Callers start a mesh with Start, which waits until
// it is ready and stops it when the test ends; when a test fails, the ends of
// all logs are printed.
package mesh
