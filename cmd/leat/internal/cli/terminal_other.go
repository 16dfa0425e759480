//go:build !linux

package cli

func isTerminal(uintptr) bool { return false }
