package cluster

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// TestBadInput gives every command something wrong: a typed error, a sentence
// that tells the next step, and an exit code that is not 0.
func TestBadInput(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	m.MustLeat("topic", "create", "there", "--partitions", "2", "--config", "max.message.bytes=2000")
	m.MustLeat("topic", "create", "a.b")
	long := strings.Repeat("x", 250)

	for name, c := range map[string]struct {
		args   []string
		stdin  string
		code   int
		reason string // the ErrorReason shown
		hint   string // part of the next step, case does not matter
	}{
		"unknown topic to produce to":   {args: []string{"produce", "absent"}, stdin: "x\n", code: 1, reason: "UNKNOWN_TOPIC", hint: "topic create"},
		"unknown topic to consume":      {args: []string{"consume", "absent", "--from-beginning", "--follow=false"}, code: 1, reason: "UNKNOWN_TOPIC", hint: "topic"},
		"unknown topic to describe":     {args: []string{"topic", "describe", "absent"}, code: 1, reason: "UNKNOWN_TOPIC", hint: "topic"},
		"unknown topic to delete":       {args: []string{"topic", "delete", "absent"}, code: 1, reason: "UNKNOWN_TOPIC", hint: "topic"},
		"topic exists":                  {args: []string{"topic", "create", "there"}, code: 1, reason: "TOPIC_EXISTS", hint: "there"},
		"empty name":                    {args: []string{"topic", "create", ""}, code: 1, reason: "INVALID_TOPIC_NAME", hint: "249"},
		"name ..":                       {args: []string{"topic", "create", ".."}, code: 1, reason: "INVALID_TOPIC_NAME", hint: ".."},
		"name of 250 characters":        {args: []string{"topic", "create", long}, code: 1, reason: "INVALID_TOPIC_NAME", hint: "249"},
		"name with a slash":             {args: []string{"topic", "create", "a/b"}, code: 1, reason: "INVALID_TOPIC_NAME", hint: "a-z"},
		"case 16: a_b beside a.b":       {args: []string{"topic", "create", "a_b"}, code: 1, reason: "INVALID_TOPIC_NAME", hint: "a.b"},
		"0 partitions":                  {args: []string{"topic", "create", "zero", "--partitions", "0"}, code: 1, reason: "INVALID_PARTITIONS", hint: "1"},
		"1,000,000 partitions":          {args: []string{"topic", "create", "many", "--partitions", "1000000"}, code: 1, reason: "INVALID_PARTITIONS", hint: "10"},
		"replication factor 4":          {args: []string{"topic", "create", "four", "--replication-factor", "4"}, code: 1, reason: "INVALID_REPLICATION_FACTOR", hint: "3"},
		"unknown config key":            {args: []string{"topic", "create", "c", "--config", "retention.mss=1"}, code: 1, reason: "INVALID_CONFIG", hint: "retention.ms"},
		"bad config value":              {args: []string{"topic", "create", "c", "--config", "segment.bytes=huge"}, code: 1, reason: "INVALID_CONFIG", hint: "segment.bytes"},
		"config that is gone":           {args: []string{"topic", "create", "c", "--config", "replica.lag.max.messages=4"}, code: 1, reason: "INVALID_CONFIG", hint: "replica.lag.time.max.ms"},
		"flush.ms with fsync":           {args: []string{"topic", "create", "c", "--config", "flush.ms=5"}, code: 1, reason: "INVALID_CONFIG", hint: "durability"},
		"unknown flag":                  {args: []string{"topic", "create", "c", "--partitons", "2"}, code: 2, hint: "--partitions"},
		"unknown command":               {args: []string{"topik", "list"}, code: 2, hint: "topic"},
		"missing argument":              {args: []string{"topic", "create"}, code: 2, hint: "NAME"},
		"produce to partition 2 of 2":   {args: []string{"produce", "there", "--partition", "2"}, stdin: "x\n", code: 1, reason: "UNKNOWN_PARTITION", hint: "2"},
		"consume partition 2 of 2":      {args: []string{"consume", "there", "--partition", "2", "--follow=false", "--from-beginning"}, code: 1, reason: "UNKNOWN_PARTITION", hint: "2"},
		"offset out of range":           {args: []string{"consume", "there", "--partition", "0", "--offset", "99", "--follow=false"}, code: 1, reason: "OFFSET_OUT_OF_RANGE", hint: "0"},
		"unknown group":                 {args: []string{"group", "describe", "absent"}, code: 1, reason: "UNKNOWN_GROUP", hint: "group list"},
		"--acks-out with --acks 0":      {args: []string{"produce", "there", "--acks", "0", "--acks-out", "/dev/null"}, stdin: "x\n", code: 2, hint: "acks"},
		"unknown dev setting":           {args: []string{"dev", "--set", "broker.log.dirz=x"}, code: 2, hint: "log.dirs"},
		"malformed JSON input":          {args: []string{"produce", "there", "--input", "json"}, stdin: "{nonsense\n", code: 1, hint: "line 1"},
		"both key flags":                {args: []string{"produce", "there", "--key-separator", ":", "--key-regex", "x"}, stdin: "x\n", code: 2, hint: "key"},
		"regular expression that fails": {args: []string{"produce", "there", "--key-regex", "("}, stdin: "x\n", code: 2, hint: "key-regex"},
	} {
		t.Run(name, func(t *testing.T) {
			r := m.LeatInput(c.stdin, c.args...)
			if r.Code != c.code {
				t.Errorf("exit code %d, want %d", r.Code, c.code)
			}
			if !strings.Contains(r.Stderr, c.reason) {
				t.Errorf("the error does not name %s", c.reason)
			}
			if !strings.Contains(strings.ToLower(r.Stderr), strings.ToLower(c.hint)) {
				t.Errorf("the error does not help with %q", c.hint)
			}
			if strings.Contains(r.Stderr, "INTERNAL_BUG") || strings.Contains(r.Stderr, "goroutine") {
				t.Error("the error looks like a bug")
			}
			if t.Failed() {
				t.Log(r)
			}
		})
	}
}

// TestGatewayNotReachable tells which address was tried and how to change it.
func TestGatewayNotReachable(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	// The mesh's own block, but neither a port that it uses nor the last one, at which
	// the block's keeper listens: that would be silence, and not a refusal.
	nobody := fmt.Sprintf("127.0.0.1:%d", m.PortBase+198)
	for _, args := range [][]string{
		{"topic", "list"},
		{"topic", "create", "x"},
		{"consume", "x", "--follow=false"},
	} {
		r := m.Leat(append([]string{"--gateway", nobody}, args...)...)
		if r.Code == 0 || !strings.Contains(r.Stderr, nobody) || !strings.Contains(r.Stderr, "--gateway") {
			t.Errorf("want a failure that names %s and --gateway; %s", nobody, r)
		}
	}
	if r := m.Leat("--gateway", nobody, "cluster", "wait", "--timeout", "300ms"); r.Code != 4 {
		t.Errorf("cluster wait on nobody: want exit code 4; %s", r)
	}
}

// TestTooLargeRecordFailsAlone: its neighbours go through.
func TestTooLargeRecordFailsAlone(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	m.MustLeat("topic", "create", "small", "--config", "max.message.bytes=2000")
	input := "before\n" + strings.Repeat("x", 5000) + "\nafter\n"
	acks := t.TempDir() + "/acks"
	r := m.LeatInput(input, "produce", "small", "--acks-out", acks)
	if r.Code != 3 || !strings.Contains(r.Stderr, "RECORD_TOO_LARGE") {
		t.Errorf("want exit code 3 and RECORD_TOO_LARGE; %s", r)
	}
	if got := m.MustLeat("consume", "small", "--from-beginning", "--follow=false"); got != "before\nafter\n" {
		t.Errorf("the topic holds %q, want both neighbours", got)
	}
	byNumber := map[int]ack{}
	for _, a := range parseAcks(t, readFile(t, acks)) {
		byNumber[a.Number] = a
	}
	if a := byNumber[2]; a.Error == nil || *a.Error != "RECORD_TOO_LARGE" {
		t.Errorf("the acknowledgement of record 2 is %+v", a)
	}
	if byNumber[1].Offset == nil || byNumber[3].Offset == nil {
		t.Errorf("records 1 and 3 were not acknowledged: %+v", byNumber)
	}
}

// TestNullEmptyAndPresent is case 19 by JSON: null, empty and present keys,
// values and header values stay apart, and headers keep their order.
func TestNullEmptyAndPresent(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	m.MustLeat("topic", "create", "nulls")
	input := strings.Join([]string{
		`{"key":null,"value":null,"headers":[]}`,
		`{"key":"","value":"","headers":[{"key":"h","value":null},{"key":"h","value":""},{"key":"h","value":"v"},{"key":"","value":"empty key"},{"key":"h","value":"again"}]}`,
		`{"key":"k","value":"v","timestamp":1700000000123}`,
		`{"key_base64":"/w==","value_base64":"AP8=","headers":[{"key":"b","value_base64":"/w=="}]}`,
		`{"value":"only a value"}`,
	}, "\n") + "\n"
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		m.MustLeatInput(input, "produce", "nulls", "--input", "json", "--compression", codec)
	}
	records := parseRecords(t, m.MustLeat("consume", "nulls", "--from-beginning", "--follow=false", "-o", "json"))
	if len(records) != 25 {
		t.Fatalf("got %d records, want 25", len(records))
	}
	str := func(s string) *string { return &s }
	for i, r := range records {
		var want record
		switch i % 5 {
		case 0:
			want = record{}
		case 1:
			want = record{Key: str(""), Value: str(""), Headers: []header{
				{Key: "h"},
				{Key: "h", Value: str("")},
				{Key: "h", Value: str("v")},
				{Key: "", Value: str("empty key")},
				{Key: "h", Value: str("again")},
			}}
		case 2:
			want = record{Key: str("k"), Value: str("v")}
		case 3:
			want = record{KeyBase64: str("/w=="), ValueBase64: str("AP8="), Headers: []header{{Key: "b", ValueBase64: str("/w==")}}}
		case 4:
			want = record{Value: str("only a value")}
		}
		got := record{Key: r.Key, KeyBase64: r.KeyBase64, Value: r.Value, ValueBase64: r.ValueBase64, Headers: r.Headers}
		if len(got.Headers) == 0 {
			got.Headers = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("record %d came back different: got %+v, want %+v", i, got, want)
		}
	}
}

// TestLinesInput: a record ends at LF, which is not part of it; CR is; a last
// line without LF counts.
func TestLinesInput(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	m.MustLeat("topic", "create", "lines")
	m.MustLeatInput("one\r\n\nthree", "produce", "lines")
	records := parseRecords(t, m.MustLeat("consume", "lines", "--from-beginning", "--follow=false", "-o", "json"))
	var got []string
	for _, r := range records {
		got = append(got, r.text())
	}
	if want := []string{"one\r", "", "three"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
