package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// timeForms says what parseTime takes, for help and errors.
const timeForms = "an RFC 3339 time, milliseconds since 1970, or a time span back from now such as 90m or \"1h ago\""

// parseTime reads a point in time.
func parseTime(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms >= 0 {
		return time.UnixMilli(ms), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	span := strings.TrimSpace(strings.TrimSuffix(text, "ago"))
	if d, err := parseSpan(span); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%q is no time; give %s", text, timeForms)
}

// parseSpan is time.ParseDuration with days.
func parseSpan(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil {
			return time.Duration(n * 24 * float64(time.Hour)), nil
		}
	}
	return time.ParseDuration(text)
}

// parseOffsetSpec reads earliest, latest, max, or a point in time.
func parseOffsetSpec(text string, now time.Time) (*typev1.OffsetSpec, error) {
	place := map[string]typev1.OffsetSpec_Place{
		"earliest": typev1.OffsetSpec_PLACE_EARLIEST, "latest": typev1.OffsetSpec_PLACE_LATEST, "max": typev1.OffsetSpec_PLACE_MAX_TIMESTAMP,
	}[text]
	if place != 0 {
		return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Place_{Place: place}}, nil
	}
	t, err := parseTime(text, now)
	if err != nil {
		return nil, fmt.Errorf("%q is neither earliest, latest, max nor a time; a time is %s", text, timeForms)
	}
	return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Timestamp{Timestamp: timestamppb.New(t)}}, nil
}
