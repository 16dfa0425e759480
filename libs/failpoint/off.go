//go:build !failpoints

package failpoint

import "time"

// Enabled says whether places are compiled in.
const Enabled = false

// Hit does nothing in this build.
func Hit(string) error { return nil }

// Now is time.Now.
func Now() time.Time { return time.Now() }
