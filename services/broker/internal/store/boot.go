package store

import (
	"os"
	"strings"
)

// BootID names the life of the host, where the system tells: it changes when the
// host starts anew, and with it everything that was only in its page cache is
// gone. Empty: unknown.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
