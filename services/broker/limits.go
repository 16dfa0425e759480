package broker

import "syscall"

// Bounds of what half of the descriptors may be.
const (
	minOpenFiles = 64
	maxOpenFiles = 1 << 16
)

// openFiles is how many files the logs may keep open. The runtime has raised the
// process's own limit as far as the system lets it.
func (c *Config) openFiles() int {
	if c.MaxOpenFiles > 0 {
		return c.MaxOpenFiles
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return minOpenFiles
	}
	return int(min(max(limit.Cur/2, minOpenFiles), maxOpenFiles))
}
