package consume

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

func sample() *gatewayv1.ConsumeRecord {
	return &gatewayv1.ConsumeRecord{
		Offset: 7, Key: []byte("k"), Value: []byte("v"), TimestampMs: 1700000000123, LeaderEpoch: 2,
		Headers: []*typev1.Header{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a")}},
	}
}

func TestFormats(t *testing.T) {
	for format, want := range map[string]string{
		`%t %p %o %T %k %h %v`: "t 3 7 1700000000123 k a=1,a= v\n",
		`%v`:                   "v\n",
		`%v\n`:                 "v\n",
		`%k\t%v`:               "k\tv\n",
		`%v\0`:                 "v\x00",
		`%v\c`:                 "v",
		`%v\\`:                 "v\\\n",
		"%v\n":                 "v\n",
		`100%% %o`:             "100% 7\n",
		`%o%%`:                 "7%\n",
		``:                     "\n",
		`\t`:                   "\t",
	} {
		f, err := ParseFormat(format)
		if err != nil {
			t.Errorf("%q: %v", format, err)
			continue
		}
		if got := string(f(nil, "t", 3, sample())); got != want {
			t.Errorf("%q: got %q, want %q", format, got, want)
		}
	}
	for _, wrong := range []string{`%z`, `%`, `\x`, `a\`} {
		if _, err := ParseFormat(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

func TestJSONLinesAreJSON(t *testing.T) {
	for _, value := range []string{"", "plain", "\"\\\n\r\t\x00\x1f\x7f", "é\u2028😀<&>", "\xff\xfe", "a\xc3"} {
		r := sample()
		r.Value = []byte(value)
		line := JSONLines(nil, "t", 3, r)
		var back struct {
			Value       *string `json:"value"`
			ValueBase64 []byte  `json:"value_base64"`
			Offset      int64   `json:"offset"`
		}
		if err := json.Unmarshal(line, &back); err != nil {
			t.Errorf("%q: %v in %s", value, err, line)
			continue
		}
		switch {
		case utf8.ValidString(value) && (back.Value == nil || *back.Value != value):
			t.Errorf("%q came back as %s", value, line)
		case !utf8.ValidString(value) && (back.Value != nil || string(back.ValueBase64) != value):
			t.Errorf("%q came back as %s", value, line)
		case back.Offset != 7 || strings.Count(string(line), "\n") != 1:
			t.Errorf("%s", line)
		}
	}
}

func FuzzJSONLines(f *testing.F) {
	f.Add([]byte("a"), []byte("\xff"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		line := JSONLines(nil, "t", 0, &gatewayv1.ConsumeRecord{Key: key, Value: value})
		if !json.Valid(line) {
			t.Errorf("not JSON: %q", line)
		}
	})
}
