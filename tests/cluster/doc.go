// Package cluster holds the tests of whole meshes. Each starts its own through
// the leat command (see tests/internal/mesh) and looks only at what a user sees:
// outputs, exit codes, files of the documented layout.
package cluster
