package topicconfig

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

type m = map[string]string

func TestTableIsSound(t *testing.T) {
	defs := Definitions()
	if !slices.IsSortedFunc(defs, func(a, b Definition) int { return strings.Compare(a.Key, b.Key) }) {
		t.Error("the table is not sorted by key")
	}
	for _, d := range defs {
		if err := check(d, d.Default); err != nil {
			t.Errorf("default of %s: %v", d.Key, err)
		}
		if d.Description == "" || !strings.HasSuffix(d.Description, ".") {
			t.Errorf("%s lacks a description", d.Key)
		}
		if _, g := gone(d.Key); g {
			t.Errorf("%s is known and gone at once", d.Key)
		}
	}
	c := Default()
	if c.SegmentBytes != 1<<30 || c.MaxMessageBytes != 1<<20 || c.MinInsyncReplicas != 0 || !c.FsyncBeforeAck() ||
		c.CleanupPolicy() != "delete" || c.RetentionMs != 7*24*3600*1000 || c.MinCleanableDirtyRatio != 0.5 {
		t.Errorf("defaults: %+v", c)
	}
}

func TestParseLayers(t *testing.T) {
	c, err := Parse(m{SegmentBytes: "2048", RetentionMs: "5"}, m{RetentionMs: "-1", "from.the.future": "x", CleanupPolicy: "delete, compact"})
	if err != nil {
		t.Fatal(err)
	}
	if c.SegmentBytes != 2048 || c.RetentionMs != -1 || c.CleanupPolicy() != "compact,delete" {
		t.Errorf("got %+v", c)
	}
	if _, err := Parse(nil, m{SegmentBytes: "many"}); err == nil {
		t.Error("a broken stored value parsed")
	}
}

func TestEverythingIsParsed(t *testing.T) {
	// Every numeric key set to a telling value must change the Config.
	for _, d := range Definitions() {
		v := map[Kind]string{KindInt: "1234", KindLong: "1234", KindDouble: "0.25", KindBoolean: "true"}[d.Kind]
		if v == "" {
			v = d.Allowed[len(d.Allowed)-1]
		}
		c, err := Parse(nil, m{d.Key: v})
		if err != nil {
			t.Errorf("%s=%s: %v", d.Key, v, err)
		}
		if c == Default() {
			t.Errorf("%s=%s changes nothing", d.Key, v)
		}
	}
}

func TestValidate(t *testing.T) {
	if err := Validate(nil, m{RetentionMs: "1000", CleanupPolicy: "compact", SegmentBytes: "1048576"}); err != nil {
		t.Error(err)
	}
	var unknown *UnknownKeyError
	if err := Validate(nil, m{"retention.msec": "1"}); !errors.As(err, &unknown) || unknown.Nearest != RetentionMs {
		t.Errorf("typo: %v", err)
	}
	if err := Validate(nil, m{strings.Repeat("x", 5000): "1"}); !errors.As(err, &unknown) || unknown.Nearest != "" {
		t.Errorf("long key: %v", err)
	}
	var g *GoneKeyError
	if err := Validate(nil, m{"replica.lag.max.messages": "4000"}); !errors.As(err, &g) || !strings.Contains(err.Error(), "replica.lag.time.max.ms") {
		t.Errorf("gone key: %v", err)
	}
	for key, values := range map[string][]string{
		SegmentBytes:                {"", "x", "-1", "0", "1.5", "99999999999"},
		MaxMessageBytes:             {"0", "16777216"},
		MinInsyncReplicas:           {"0"},
		RetentionMs:                 {"-2", "9223372036854775808"},
		MinCleanableDirtyRatio:      {"NaN", "1.1", "-0.1", "half"},
		CleanupPolicy:               {"", ",", "shred", "delete,shred"},
		UncleanLeaderElectionEnable: {"yes", "TRUE"},
		Durability:                  {"disk"},
	} {
		for _, v := range values {
			var fault *ValueError
			if err := Validate(nil, m{key: v}); !errors.As(err, &fault) || fault.Key != key {
				t.Errorf("%s=%q: %v", key, v, err)
			}
		}
	}
}

func TestFlushNeedsOS(t *testing.T) {
	var conflict *ConflictError
	if err := Validate(nil, m{FlushMs: "10"}); !errors.As(err, &conflict) || conflict.Key != FlushMs {
		t.Errorf("flush.ms with fsync: %v", err)
	}
	if err := Validate(nil, m{FlushMs: "10", FlushMessages: "5", Durability: "os"}); err != nil {
		t.Error(err)
	}
	if err := Validate(m{Durability: "os"}, m{FlushMessages: "5"}); err != nil {
		t.Error(err)
	}
	if err := Validate(m{Durability: "os"}, m{FlushMessages: "5", Durability: "fsync"}); !errors.As(err, &conflict) {
		t.Errorf("flush.messages with fsync over os: %v", err)
	}
}

func TestFixed(t *testing.T) {
	var fixed *FixedError
	if err := ValidateChange(nil, m{}, m{Durability: "os"}); !errors.As(err, &fixed) || fixed.Old != "fsync" {
		t.Errorf("durability changed: %v", err)
	}
	if err := ValidateChange(nil, m{}, m{Durability: "fsync", RetentionMs: "1"}); err != nil {
		t.Error(err)
	}
}

func TestEffective(t *testing.T) {
	got := map[string]Entry{}
	for _, e := range Effective(m{RetentionMs: "5", SegmentMs: "7"}, m{RetentionMs: "6"}, 3) {
		got[e.Key] = e
	}
	if len(got) != len(Definitions()) || got[RetentionMs].Source != SourceTopic || got[RetentionMs].Value != "6" ||
		got[SegmentMs].Source != SourceCluster || got[SegmentBytes].Source != SourceDefault {
		t.Errorf("got %+v", got)
	}
}

func TestMinISR(t *testing.T) {
	for _, c := range []struct {
		defaults, topic m
		replicas, want  int32
		shown           string
	}{
		{nil, nil, 1, 1, "1"},
		{nil, nil, 2, 1, "1"},
		{nil, nil, 3, 2, "2"},
		{nil, nil, 5, 2, "2"},
		{nil, m{MinInsyncReplicas: "1"}, 3, 1, "1"},
		{nil, m{MinInsyncReplicas: "3"}, 3, 3, "3"},
		{m{MinInsyncReplicas: "2"}, nil, 2, 2, "2"},
		{m{MinInsyncReplicas: "2"}, nil, 1, 1, "2"}, // never more than there are
	} {
		config, err := Parse(c.defaults, c.topic)
		if err != nil {
			t.Fatal(err)
		}
		if got := config.MinISR(c.replicas); got != c.want {
			t.Errorf("mesh %v, topic %v, %d replicas: %d, want %d", c.defaults, c.topic, c.replicas, got, c.want)
		}
		for _, e := range Effective(c.defaults, c.topic, c.replicas) {
			if e.Key == MinInsyncReplicas && e.Value != c.shown {
				t.Errorf("mesh %v, topic %v, %d replicas: shown as %s, want %s", c.defaults, c.topic, c.replicas, e.Value, c.shown)
			}
		}
	}
}
