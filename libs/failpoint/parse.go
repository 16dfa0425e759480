//go:build failpoints

package failpoint

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockName is what the skew of the clock is called among the places.
const clockName = "clock"

type kind int

const (
	doNothing kind = iota
	doError
	doDelay
	doPause
	doCrash
	doSkew
)

// action is what happens at a place.
type action struct {
	kind    kind
	err     error         // of doError
	wait    time.Duration // of doDelay and doSkew
	times   int           // how often yet; below 0: always
	skip    int           // how often not, first
	percent float64
}

type entry struct {
	name string
	does *action
}

// Error is what a place fails with. It wraps the system's error, if one was asked
// for.
type Error struct {
	Place string
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("failpoint %s: %v", e.Place, e.Err) }

// Unwrap returns the system's error.
func (e *Error) Unwrap() error { return e.Err }

var errInjected = errors.New("an error was asked for")

func parse(text string) ([]entry, error) {
	var entries []entry
	for part := range strings.SplitSeq(text, ";") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, what, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not name=action", part)
		}
		if name != clockName && !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("there is no place %q", name)
		}
		a, err := parseAction(what)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
		if (name == clockName) != (a.kind == doSkew) && a.kind != doNothing {
			return nil, fmt.Errorf("%s: skew is for the clock, and nothing else is", part)
		}
		entries = append(entries, entry{name, a})
	}
	return entries, nil
}

func parseAction(text string) (*action, error) {
	a := &action{times: -1, percent: 100}
	end := strings.IndexAny(text, "(*%+")
	if end < 0 {
		end = len(text)
	}
	word, rest, arg := text[:end], text[end:], ""
	if strings.HasPrefix(rest, "(") {
		closing := strings.IndexByte(rest, ')')
		if closing < 0 {
			return nil, errors.New("a parenthesis is not closed")
		}
		arg, rest = rest[1:closing], rest[closing+1:]
	}
	if err := a.heed(word, arg); err != nil {
		return nil, err
	}
	for rest != "" {
		next := strings.IndexAny(rest[1:], "*%+") + 1
		if next == 0 {
			next = len(rest)
		}
		v, err := strconv.ParseFloat(rest[1:next], 64)
		if err != nil || v < 0 || v > 1e9 {
			return nil, fmt.Errorf("%q has no number", rest[:next])
		}
		switch rest[0] {
		case '*':
			a.times = int(v)
		case '%':
			a.percent = v
		case '+':
			a.skip = int(v)
		default:
			return nil, fmt.Errorf("%q is none of *N, %%P and +N", rest)
		}
		rest = rest[next:]
	}
	return a, nil
}

// heed sets what the action is.
func (a *action) heed(word, arg string) (err error) {
	switch word {
	case "off":
	case "pause":
		a.kind = doPause
	case "crash":
		a.kind = doCrash
	case "delay":
		a.kind = doDelay
		a.wait, err = time.ParseDuration(arg)
	case "skew":
		a.kind = doSkew
		a.wait, err = time.ParseDuration(arg)
	case "error":
		a.kind = doError
		kinds := map[string]error{"": errInjected, "EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC}
		known := false
		if a.err, known = kinds[arg]; !known {
			return fmt.Errorf("there is no error %q; use EIO or ENOSPC", arg)
		}
	default:
		return fmt.Errorf("there is no action %q", word)
	}
	return err
}
