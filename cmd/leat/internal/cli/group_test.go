package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// golden compares with testdata/NAME.golden, or, with -update, writes it anew.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// TestGroupCommands print what a reader may count on: tables for people, one line of
// JSON for programs, and the exit codes of what was done.
func TestGroupCommands(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   string
		code   int
		refuse bool
	}{
		{name: "describe", args: "group describe busy"},
		{name: "describe-old", args: "group describe g --rate-over 0s"},
		{name: "why", args: "group why busy"},
		{name: "why-epoch", args: "group why busy --epoch 11"},
		{name: "why-calm", args: "group why calm"},
		{name: "simulate", args: "group simulate busy --remove m2 --add 1 --like worker-1"},
		{name: "reset-plan", args: "group reset busy --to-earliest"},
		{name: "reset-plan-words", args: "group reset busy --shift-by -5 --dry-run"},
		{name: "reset-no-plan", args: "group reset busy --to-offset 7 --topic away --execute", code: 1},
		{name: "reset", args: "group reset busy --to-latest --execute"},
		{name: "reset-partly", args: "group reset busy --to-latest --execute", code: 3, refuse: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startFake(t)
			f.refuseReset = c.refuse
			out, stderr := leat(t, c.code, f.addr, "", strings.Fields(c.args)...)
			golden(t, "group-"+c.name, out+stderr)
			line, _ := leat(t, c.code, f.addr, "", append(strings.Fields(c.args), "-o", "json")...)
			if !json.Valid([]byte(line)) || strings.Count(line, "\n") != 1 {
				t.Errorf("not one line of JSON: %s", line)
			}
			golden(t, "group-"+c.name+"-json", line)
		})
	}
}

// TestGroupErrors tell the next step.
func TestGroupErrors(t *testing.T) {
	f := startFake(t)
	for args, want := range map[string]string{
		"group describe nobody":                    "UNKNOWN_GROUP",
		"group why nobody":                         "Next: ",
		"group why busy --epoch 99":                "the last 64 are",
		"group simulate nobody --add 1":            "UNKNOWN_GROUP",
		"group reset nobody --to-earliest":         "UNKNOWN_GROUP",
		"group reset nobody --to-latest --execute": "UNKNOWN_GROUP",
	} {
		if _, stderr := leat(t, 1, f.addr, "", strings.Fields(args)...); !strings.Contains(stderr, want) || !strings.Contains(stderr, "Next: ") {
			t.Errorf("%s: %s", args, stderr)
		}
	}
	for args, want := range map[string]string{
		"group reset busy":                                   "0 flags say where to",
		"group reset busy --to-earliest --to-latest":         "2 flags say where to",
		"group reset busy --to-earliest --dry-run --execute": "exclude each other",
		"group reset busy --to-offset -1":                    "count from 0",
		"group reset busy --by-duration soon":                "time span above 0",
		"group reset busy --by-duration -1h":                 "time span above 0",
		"group reset busy --to-datetime yesterday":           "is no time",
		"group reset busy --to-earliest --topic t:":          "neither TOPIC nor",
		"group reset busy --to-earliest --topic t:0,x":       "names no partition",
		"group reset busy --to-earliest --timeout 0s":        "must be above 0",
		"group reset --to-earliest":                          "GROUP is missing",
		"group simulate busy":                                "nobody leaves and nobody comes",
		"group simulate busy --add -1":                       "must not be negative",
		"group simulate busy --remove m1 --like m2":          "--like says",
		"group describe busy --rate-over 2m":                 "must be 0 to 1m0s",
		"group reset busy --to-erliest":                      "did you mean --to-earliest",
	} {
		if _, stderr := leat(t, 2, f.addr, "", strings.Fields(args)...); !strings.Contains(stderr, want) || !strings.Contains(stderr, "Next: ") {
			t.Errorf("%s: %s", args, stderr)
		}
	}
	if len(f.resets) > 0 {
		t.Errorf("something was asked for: %v", f.resets)
	}
}

// TestGroupResetAsks for what the flags say, and carries out exactly what was planned.
func TestGroupResetAsks(t *testing.T) {
	for args, want := range map[string]*gatewayv1.ResetGroupOffsetsRequest{
		"--to-offset 7 --topic t:2,0 --topic u": {
			Target: &gatewayv1.ResetGroupOffsetsRequest_Offset{Offset: 7},
			Topics: []*gatewayv1.TopicPartitions{{Topic: "t", Partitions: []int32{2, 0}}, {Topic: "u"}},
		},
		"--shift-by -3":                      {Target: &gatewayv1.ResetGroupOffsetsRequest_ShiftBy{ShiftBy: -3}},
		"--shift-by 0":                       {Target: &gatewayv1.ResetGroupOffsetsRequest_ShiftBy{}},
		"--by-duration 2d":                   {Target: &gatewayv1.ResetGroupOffsetsRequest_ByDuration{ByDuration: durationProto(48 * time.Hour)}},
		"--to-latest":                        {Target: resetToPlace(2)},
		"--to-datetime 1500":                 {Target: resetToTime(t, "1500")},
		"--to-datetime 2026-01-02T03:04:05Z": {Target: resetToTime(t, "2026-01-02T03:04:05Z")},
	} {
		f := startFake(t)
		leat(t, 0, f.addr, "", append(strings.Fields("group reset busy --execute --timeout 7s"), strings.Fields(args)...)...)
		if len(f.resets) != 2 {
			t.Fatalf("%s: asked %v", args, f.resets)
		}
		want.Group, want.DryRun, want.RevocationTimeout = "busy", true, durationProto(7*time.Second)
		if !proto.Equal(f.resets[0], want) {
			t.Errorf("%s: planned %v, want %v", args, f.resets[0], want)
		}
		exact := &gatewayv1.ResetGroupOffsetsRequest{Group: "busy", RevocationTimeout: want.RevocationTimeout, Target: &gatewayv1.ResetGroupOffsetsRequest_Offsets{Offsets: &gatewayv1.GroupOffsets{
			Offsets: []*gatewayv1.GroupOffset{{Topic: "t", Partition: 0, NextOffset: 100}, {Topic: "t", Partition: 1, NextOffset: 1900}},
		}}}
		if !proto.Equal(f.resets[1], exact) {
			t.Errorf("%s: did %v, want %v", args, f.resets[1], exact)
		}
	}
}

func resetToTime(t *testing.T, text string) *gatewayv1.ResetGroupOffsetsRequest_Spec {
	spec, err := parseOffsetSpec(text, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return &gatewayv1.ResetGroupOffsetsRequest_Spec{Spec: spec}
}

// TestGroupDescribeWatches only where there is a lag of which no rate is known, or
// where it is asked to.
func TestGroupDescribeWatches(t *testing.T) {
	for args, want := range map[string][]time.Duration{
		"g":                    {0, time.Second},
		"g --rate-over 0s":     {0},
		"g --rate-over 3s":     {3 * time.Second},
		"busy":                 {0},
		"busy --rate-over 50s": {50 * time.Second},
	} {
		f := startFake(t)
		leat(t, 0, f.addr, "", append([]string{"group", "describe"}, strings.Fields(args)...)...)
		if len(f.ratesOver) != len(want) || f.ratesOver[len(want)-1] != want[len(want)-1] {
			t.Errorf("%s: asked to watch for %v, want %v", args, f.ratesOver, want)
		}
	}
}

// TestGroupCompletion: a shell completes groups, members and topics by asking the
// gateway, and nothing when there is none.
func TestGroupCompletion(t *testing.T) {
	f := startFake(t)
	for args, want := range map[string]string{
		"group describe g":              "g goats",
		"group describe ":               "g goats x",
		"group why go":                  "goats",
		"group delete z":                "",
		"group commit x":                "x",
		"group describe g ":             "",
		"consume t --group go":          "goats",
		"group simulate busy --remove ": "worker-1 m2 m3 worker-1",
		"group simulate busy --like m":  "m2 m3",
		"group simulate nobody --like ": "",
		"group reset g --topic tt":      "tt",
	} {
		var got []string
		// A shell is not kept waiting for long; who asks again is answered in the end.
		for range 10 {
			if got = completions(t, f.addr, strings.Split(args, " ")); strings.Join(got, " ") == want {
				break
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q completes to %q, want %q", args, s, want)
		}
	}
	if out, _ := leat(t, 0, "127.0.0.1:1", "", "__complete", "group", "describe", ""); !strings.HasPrefix(out, ":") {
		t.Errorf("without a gateway: %s", out)
	}
}

// completions are what a shell would be given.
func completions(t *testing.T, addr string, words []string) (names []string) {
	t.Helper()
	out, _ := leat(t, 0, addr, "", append([]string{"__complete"}, words...)...)
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, ":") {
			names = append(names, line)
		}
	}
	return names
}

// A group whose shard can confirm nothing is no reason to wait for the end of the
// command's time: the gateway has waited, and the reader of the error can act.
func TestAGroupWhoseShardLacksReplicasIsToldAtOnce(t *testing.T) {
	for _, reason := range []typev1.ErrorReason{typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE} {
		f := startFake(t)
		f.lacks = rpc.Errorf(reason, "see leat topic describe __consumer_offsets").With("group", "g")
		_, stderr := leat(t, 1, f.addr, "", "group", "describe", "g", "--rate-over", "0s")
		if want := "see leat topic describe __consumer_offsets (" + rpc.ReasonName(reason) + ")"; !strings.Contains(stderr, want) || !strings.Contains(stderr, "Next: ") {
			t.Errorf("%q does not say %q and what to do next", stderr, want)
		}
		if n := len(f.ratesOver); n != 1 {
			t.Errorf("%v: the gateway is asked %d times, want once", reason, n)
		}
	}
}
