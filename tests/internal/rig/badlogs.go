package rig

import (
	"regexp"
	"strings"
	"time"
)

// BadLog matches a line by which a process says that it found a bug in itself.
var BadLog = regexp.MustCompile(`panic|DATA RACE|INTERNAL_BUG|fatal error|level=ERROR.*(assert|invariant)`)

// CheckLogs demands that no process found a bug in itself, or talked too much for the
// time that it ran.
func (r *Rig) CheckLogs(ran time.Duration) {
	r.t.Helper()
	for name, text := range r.Logs() {
		n := strings.Count(text, "\n")
		if most := 2000 + int(100*ran.Seconds()); n > most {
			r.t.Errorf("%s wrote %d lines in %v", name, n, ran)
		}
		found := 0
		for line := range strings.Lines(text) {
			if BadLog.MatchString(line) && found < 5 {
				found++
				r.t.Errorf("%s: %s", name, line)
			}
		}
	}
}
