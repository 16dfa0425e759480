// Package version tells which release of Leat this is. The caller has no
// duties; the build sets Version by the linker.
package version
