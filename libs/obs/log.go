package obs

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// ParseLevel reads debug, info, warn or error.
func ParseLevel(level string) (slog.Level, error) {
	switch strings.ToLower(level) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log level %q is none of debug, info, warn and error", level)
}

// CheckFormat accepts text and json.
func CheckFormat(format string) error {
	if format != "text" && format != "json" {
		return fmt.Errorf("log format %q is neither text nor json", format)
	}
	return nil
}

// NewLogger makes the logger of one component. Every line tells which one, as
// "broker-1", and which life of it. A level that ParseLevel refuses counts as
// info, and a format that CheckFormat refuses as text.
func NewLogger(w io.Writer, level, format, kind string, id int32, incarnation uint64) *slog.Logger {
	l, err := ParseLevel(level)
	if err != nil {
		l = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: l}
	var h slog.Handler
	if format == "json" {
		h = slog.NewJSONHandler(w, opts)
	} else {
		h = slog.NewTextHandler(w, opts)
	}
	return slog.New(h).With(
		"component", ComponentName(kind, id),
		"incarnation", FormatIncarnation(incarnation))
}

// ComponentName names a process within its mesh, for example "broker-1".
func ComponentName(kind string, id int32) string { return fmt.Sprintf("%s-%d", kind, id) }

// FormatIncarnation writes an incarnation as people meet it: 16 hex digits.
func FormatIncarnation(incarnation uint64) string { return fmt.Sprintf("%016x", incarnation) }
