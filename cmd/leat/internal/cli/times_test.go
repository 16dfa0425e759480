package cli

import (
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

func TestTimes(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000).UTC()
	for text, want := range map[string]int64{
		"1699999999999":             1_699_999_999_999,
		"0":                         0,
		"2023-11-14T22:13:20Z":      1_700_000_000_000,
		"2023-11-14T23:13:20+01:00": 1_700_000_000_000,
		"2023-11-14T22:13:20.5Z":    1_700_000_000_500,
		"2023-11-14":                1_699_920_000_000,
		"1h":                        now.Add(-time.Hour).UnixMilli(),
		"1h ago":                    now.Add(-time.Hour).UnixMilli(),
		"90m":                       now.Add(-90 * time.Minute).UnixMilli(),
		"2d ago":                    now.Add(-48 * time.Hour).UnixMilli(),
	} {
		got, err := parseTime(text, now)
		if err != nil || got.UnixMilli() != want {
			t.Errorf("%q: %v, %v; want %d", text, got.UnixMilli(), err, want)
		}
	}
	for _, wrong := range []string{"", "soon", "-5", "-1h", "2023-13-01", "1h later"} {
		if got, err := parseTime(wrong, now); err == nil {
			t.Errorf("%q is %v", wrong, got)
		}
	}
	for text, want := range map[string]typev1.OffsetSpec_Place{
		"earliest": typev1.OffsetSpec_PLACE_EARLIEST, "latest": typev1.OffsetSpec_PLACE_LATEST, "max": typev1.OffsetSpec_PLACE_MAX_TIMESTAMP,
	} {
		if spec, err := parseOffsetSpec(text, now); err != nil || spec.GetPlace() != want {
			t.Errorf("%q: %v, %v", text, spec, err)
		}
	}
	if spec, err := parseOffsetSpec("1h", now); err != nil || spec.GetTimestamp().AsTime() != now.Add(-time.Hour) {
		t.Errorf("1h: %v, %v", spec, err)
	}
}
