package config

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// SetDefaults sets every field that has a default tag to it. It panics on a
// default that its own type refuses, which is a mistake of the program.
func SetDefaults(cfg any) {
	for _, f := range fields(cfg) {
		if f.Default == "" {
			continue
		}
		if err := f.set(f.Default); err != nil {
			panic(fmt.Sprintf("config: default %q of %s: %v", f.Default, f.Name, err))
		}
	}
}

// Set sets one key. Errors are *UnknownKeyError and *ValueError.
func Set(cfg any, key, value string) error {
	return setIn(fields(cfg), key, value, "")
}

// sourceFlag is the source of what stands among the arguments.
const sourceFlag = "flag"

// setIn sets one key among fields; source is named in errors.
func setIn(fs []field, key, value, source string) error {
	for i := range fs {
		if fs[i].Name != key {
			continue
		}
		if err := fs[i].set(value); err != nil {
			return &ValueError{Key: key, Value: value, Source: source, Reason: err.Error()}
		}
		return nil
	}
	var names []string
	for _, f := range fs {
		names = append(names, f.Name)
	}
	if source == sourceFlag {
		names = append(names, "config", "help", "version")
	}
	return &UnknownKeyError{Key: key, Nearest: nearest(key, names), Source: source}
}

// Keys lists the settings. Where there is no default tag, the present value is
// the default.
func Keys(cfg any) []Key {
	fs := fields(cfg)
	out := make([]Key, len(fs))
	for i, f := range fs {
		out[i] = f.Key
	}
	return out
}

// Values lists keys with their present values, in the form in which they could
// be given.
func Values(cfg any) []KeyValue {
	fs := fields(cfg)
	out := make([]KeyValue, len(fs))
	for i := range fs {
		out[i] = KeyValue{Key: fs[i].Name, Value: fs[i].format()}
	}
	return out
}

// KeyValue is one setting as it stands.
type KeyValue struct {
	Key, Value string
}

// EnvName is the environment variable of a key: the prefix, and the key in
// capitals with underscores for dots and hyphens.
func EnvName(prefix, key string) string {
	return prefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))
}

// Usage prints all settings with flag, type, default, variable and help. prefix
// is that of the environment.
func Usage(w io.Writer, cfg any, prefix string) error {
	var b strings.Builder
	for _, k := range Keys(cfg) {
		fmt.Fprintf(&b, "  --%s=%s", k.Name, strings.ToUpper(k.Type))
		if k.Default != "" {
			fmt.Fprintf(&b, " (default %s)", k.Default)
		}
		fmt.Fprintf(&b, " [%s]\n", EnvName(prefix, k.Name))
		if k.Help != "" {
			fmt.Fprintf(&b, "        %s\n", k.Help)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Sentinels of Load: the caller prints what was asked for and exits with 0.
var (
	ErrHelp    = errors.New("help was asked for")
	ErrVersion = errors.New("the version was asked for")
)

// UnknownKeyError is a key that no field has.
type UnknownKeyError struct {
	Key string
	// Nearest is the known key that looks most like it; "" if none does.
	Nearest string
	// Source is where it stood, for example "flag" or "leat.conf:3"; may be "".
	Source string
}

func (e *UnknownKeyError) Error() string {
	msg := fmt.Sprintf("unknown setting %.100q", e.Key)
	if e.Source != "" {
		msg = e.Source + ": " + msg
	}
	if e.Nearest != "" {
		return fmt.Sprintf("%s; did you mean %q?", msg, e.Nearest)
	}
	return msg + "; --help lists all of them"
}

// ValueError is a value that its key does not take.
type ValueError struct {
	Key, Value string
	// Source is where it stood; may be "".
	Source string
	// Reason says what to give instead.
	Reason string
}

func (e *ValueError) Error() string {
	msg := fmt.Sprintf("%s = %q: %s", e.Key, e.Value, e.Reason)
	if e.Source != "" {
		return e.Source + ": " + msg
	}
	return msg
}

// SyntaxError is a flag or a line of a file that cannot be read.
type SyntaxError struct {
	// Source is where it stood.
	Source string
	// Reason says what is wrong and what to give instead.
	Reason string
}

func (e *SyntaxError) Error() string { return e.Source + ": " + e.Reason }

// maxTypo is the largest edit distance that still counts as a slip.
const maxTypo = 6

// nearest finds the known key with the smallest edit distance, if it is small
// for the length of the key.
func nearest(key string, names []string) string {
	best, bestDistance := "", min(max(2, len(key)/3), maxTypo)+1
	for _, name := range names {
		if d := distance(key, name); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// maxDistanceLen bounds the work that a silly key can cause.
const maxDistanceLen = 128

// distance is the number of single-byte edits between a and b.
func distance(a, b string) int {
	if len(a) > maxDistanceLen || len(b) > maxDistanceLen {
		return maxDistanceLen
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], cost
		}
	}
	return row[len(b)]
}
