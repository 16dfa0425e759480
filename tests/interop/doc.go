// Package interop checks Leat's record batches against an independent
// implementation, franz-go: what one of the two writes, the other reads back as it
// was, in every codec, with null and empty fields told apart. It is a module of its
// own, outside the workspace, so that nothing else depends on franz-go; `make
// interop` runs it.
package interop
