// Command gen-errors writes docs/errors.md; `go generate` in libs/rpc runs it.
package main
