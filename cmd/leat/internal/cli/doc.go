// Package cli is the command tree of leat: flags, help, errors and exit codes.
// What the commands do lives beside it, in produce, consume and dev.
//
// Run is the whole command: main gives it the arguments, the standard streams
// and the signals, and exits with the code that it returns. docs/cli.md is
// generated from the tree (go generate) and checked by a test.
package cli
