package produce

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// readAll reads an input to its end.
func readAll(t *testing.T, in *Input) []Item {
	t.Helper()
	var all []Item
	for {
		items, err := in.Read()
		all = append(all, items...)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func show(b []byte) string {
	if b == nil {
		return "null"
	}
	return fmt.Sprintf("%q", b)
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		input, separator, regex string
		want                    string
	}{
		{"", "", "", ""},
		{"a\n", "", "", `null="a"`},
		{"a", "", "", `null="a"`},
		{"a\nb", "", "", `null="a" null="b"`},
		{"\n", "", "", `null=""`},
		{"\n\n", "", "", `null="" null=""`},
		{"a\r\nb\rc\n", "", "", `null="a\r" null="b\rc"`},
		{"k:v\nk::v\n:v\nk:\nv\n", ":", "", `"k"="v" "k"=":v" ""="v" "k"="" null="v"`},
		{"k\tv\n", "\t", "", `"k"="v"`},
		{"k=>v=>w\n", "=>", "", `"k"="v=>w"`},
		{"x blk_-12 blk_3\nnone\n", "", `blk_-?[0-9]+`, `"blk_-12"="x blk_-12 blk_3" null="none"`},
		{"id=7 id=8\nid=\n", "", `id=([0-9]*)`, `"7"="id=7 id=8" ""="id="`},
		{"ab\n", "", `a(x)?b`, `null="ab"`}, // the group took no part
		{"a\x00\xff\n", "", "", `null="a\x00\xff"`},
	} {
		var regex *regexp.Regexp
		if c.regex != "" {
			regex = regexp.MustCompile(c.regex)
		}
		var got []string
		for i, item := range readAll(t, NewLines(strings.NewReader(c.input), Options{}, []byte(c.separator), regex)) {
			if item.Number != int64(i+1) {
				t.Errorf("%q: record %d has number %d", c.input, i+1, item.Number)
			}
			got = append(got, show(item.Record.Key)+"="+show(item.Record.Value))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%q: got %s, want %s", c.input, s, c.want)
		}
	}
}

// TestLinesThatAreTooLong fail alone: their neighbours go through.
func TestLinesThatAreTooLong(t *testing.T) {
	limit := strings.Repeat("x", MaxRecordBytes)
	items := readAll(t, NewLines(strings.NewReader("a\n"+limit+"\n"+limit+"y\nb\n"+limit+"y"), Options{}, nil, nil))
	if len(items) != 5 {
		t.Fatalf("%d items", len(items))
	}
	for i, tooLong := range []bool{false, false, true, false, true} {
		if got := items[i].Err != nil; got != tooLong {
			t.Errorf("record %d: too long %v", i+1, got)
		}
		if tooLong && !rpc.IsReason(items[i].Err, typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE) {
			t.Errorf("record %d: %v", i+1, items[i].Err)
		}
	}
	if string(items[3].Record.Value) != "b" || len(items[1].Record.Value) != MaxRecordBytes {
		t.Error("the neighbours are not whole")
	}
}

// TestReadDoesNotWaitForMore: what is at hand is sent, even in the middle of the
// next line.
func TestReadDoesNotWaitForMore(t *testing.T) {
	r, w := io.Pipe()
	in := NewLines(r, Options{}, nil, nil)
	go func() {
		_, _ = io.WriteString(w, "a\nb\nhalf a l")
		_, _ = io.WriteString(w, "ine\n")
		w.Close()
	}()
	got := make(chan []Item, 1)
	go func() {
		items, err := in.Read()
		if err != nil {
			t.Error(err)
		}
		got <- items
	}()
	select {
	case items := <-got:
		if len(items) != 2 {
			t.Errorf("%d items", len(items))
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Read waits for more")
	}
	if rest := readAll(t, in); len(rest) != 1 || string(rest[0].Record.Value) != "half a line" || rest[0].Number != 3 {
		t.Errorf("the rest: %v", rest)
	}
}

func TestOptionsApplyToEveryRecord(t *testing.T) {
	partition := int32(3)
	o := Options{Headers: []*typev1.Header{{Key: []byte("h"), Value: []byte("1")}}, Partition: &partition}
	items := readAll(t, NewJSON(strings.NewReader(`{"value":"a","headers":[{"key":"own","value":null}],"partition":1}`+"\n"+`{"value":"b"}`), o))
	if h := items[0].Record.Headers; len(h) != 2 || string(h[0].Key) != "own" || h[0].Value != nil || string(h[1].Key) != "h" {
		t.Errorf("headers %v", h)
	}
	if a, b := items[0].Record.GetPartition(), items[1].Record.GetPartition(); a != 1 || b != 3 {
		t.Errorf("partitions %d and %d", a, b)
	}
}

func TestJSONRecords(t *testing.T) {
	for _, c := range []struct {
		line string
		want string // key=value@timestamp, or part of the error
	}{
		{`{"key":"k","value":"v"}`, `"k"="v"@-`},
		{`{}`, `null=null@-`},
		{`{"key":null,"value":""}`, `null=""@-`},
		{`{"key_base64":"","value_base64":"/w=="}`, `""="\xff"@-`},
		{`{"value":"é\u0000"}`, `null="é\x00"@-`},
		{`{"value":"a","timestamp":0}`, `null="a"@0`},
		{`{"value":"a","timestamp":1700000000123}`, `null="a"@1700000000123`},
		{`{"value":"a","timestamp":"2023-11-14T22:13:20.123Z"}`, `null="a"@1700000000123`},
		{`{"value":"a","timestamp":null}`, `null="a"@-`},
		{`{"value":"a","timestamp":-1}`, `null="a"@-`},
		{`{"topic":"t","offset":5,"leader_epoch":2,"value":"a"}`, `null="a"@-`},
		{`{"value":"a","timestamp":-5}`, "negative"},
		{`{"value":"a","timestamp":"today"}`, "neither milliseconds"},
		{`{"valu":"a"}`, `unknown field "valu"`},
		{`{"value":1}`, "value must not be a number"},
		{`{"value":"a","value_base64":"YQ=="}`, "leave out one"},
		{`{"value_base64":"?"}`, "not base64"},
		{`{"headers":[{"value":"x"}]}`, "header 1: it has no key"},
		{`{"headers":{"a":"b"}}`, "headers must not be a object"},
		{`{"value":"a"} {"value":"b"}`, "one object a line"},
		{`["a"]`, "not a JSON object"},
		{`nonsense`, "not a JSON object"},
		{`null`, "null is no JSON object"},
		{"{\"value\":\"\xff\"}", "not UTF-8"},
		{`{"partition":1.5}`, "partition must not be a number"},
	} {
		items := readAll(t, NewJSON(strings.NewReader(c.line), Options{}))
		if len(items) != 1 {
			t.Fatalf("%s: %d items", c.line, len(items))
		}
		if err := items[0].Err; err != nil {
			if !strings.Contains(err.Message, c.want) || !strings.HasPrefix(err.Message, "record 1 (line 1): ") || err.Reason != typev1.ErrorReason_ERROR_REASON_INVALID_RECORD {
				t.Errorf("%s: %v, want %q", c.line, err, c.want)
			}
			continue
		}
		r := items[0].Record
		got := show(r.Key) + "=" + show(r.Value) + "@-"
		if r.TimestampMs != nil {
			got = strings.TrimSuffix(got, "-") + fmt.Sprint(*r.TimestampMs)
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.line, got, c.want)
		}
	}
}

func TestEmptyLinesOfJSONHaveNoNumber(t *testing.T) {
	items := readAll(t, NewJSON(strings.NewReader("\n{\"value\":\"a\"}\r\n  \n{\"value\":\"b\"}\n"), Options{}))
	if len(items) != 2 || items[0].Number != 1 || items[1].Number != 2 || items[0].Err != nil {
		t.Errorf("items %v", items)
	}
}

func FuzzJSONNeverPanics(f *testing.F) {
	f.Add([]byte(`{"key":"k","headers":[{"key":"a"}]}`))
	f.Fuzz(func(_ *testing.T, line []byte) {
		in := NewJSON(bytes.NewReader(line), Options{})
		for {
			if _, err := in.Read(); err != nil {
				return
			}
		}
	})
}

func TestHistogram(t *testing.T) {
	var h histogram
	if h.percentile(0.5) != 0 {
		t.Error("an empty histogram has no percentiles")
	}
	for us := 1; us <= 10_000; us++ {
		h.add(time.Duration(us)*time.Microsecond, 1)
	}
	for share, want := range map[float64]time.Duration{0.5: 5 * time.Millisecond, 0.99: 9900 * time.Microsecond, 0: time.Microsecond} {
		got := h.percentile(share)
		if off := float64(got-want) / float64(want); off > 0.04 || off < -0.04 {
			t.Errorf("percentile %v is %v, want about %v", share, got, want)
		}
	}
	previous := -1
	for d := time.Duration(0); d < time.Hour; d = d*5/4 + time.Microsecond {
		b := bucketOf(d)
		if b < previous || b >= len(h.counts) || lowerBound(b) > d {
			t.Fatalf("%v is in bucket %d, which begins at %v", d, b, lowerBound(b))
		}
		previous = b
	}
}
