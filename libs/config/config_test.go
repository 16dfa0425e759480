package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

type Base struct {
	NodeID int32  `config:"node.id" default:"1" help:"Number of the node."`
	Listen string `config:"listen" help:"Where to serve."`
}

type limits struct {
	Bytes int64 `config:"limit.bytes" default:"1048576"`
}

type sample struct {
	Base
	Limits   limits
	LogDirs  []string      `config:"log.dirs" default:"a, b"`
	Linger   time.Duration `config:"linger" default:"5ms"`
	Insecure bool          `config:"allow.insecure" default:"false"`
	Ratio    float64       `config:"ratio" default:"0.5"`
	Count    int           `config:"count"`
	Seed     uint64        `config:"seed"`
	Listener any           // no setting
	refuse   error
}

func (s *sample) Validate() error { return s.refuse }

func defaults() *sample {
	s := &sample{}
	SetDefaults(s)
	return s
}

func TestDefaults(t *testing.T) {
	want := &sample{
		Base: Base{NodeID: 1}, Limits: limits{Bytes: 1 << 20}, LogDirs: []string{"a", "b"},
		Linger: 5 * time.Millisecond, Ratio: 0.5,
	}
	if got := defaults(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestSet(t *testing.T) {
	s := defaults()
	for key, value := range map[string]string{
		"node.id": " 7 ", "listen": "127.0.0.1:1", "limit.bytes": "-3", "log.dirs": "x,,y ", "linger": "2m",
		"allow.insecure": "true", "ratio": "1e-3", "count": "9", "seed": "18446744073709551615",
	} {
		if err := Set(s, key, value); err != nil {
			t.Error(err)
		}
	}
	want := &sample{
		Base: Base{NodeID: 7, Listen: "127.0.0.1:1"}, Limits: limits{Bytes: -3}, LogDirs: []string{"x", "y"},
		Linger: 2 * time.Minute, Insecure: true, Ratio: 1e-3, Count: 9, Seed: 1<<64 - 1,
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
	for key, value := range map[string]string{
		"node.id": "3000000000", "limit.bytes": "1.5", "linger": "5", "allow.insecure": "maybe", "ratio": "NaN", "seed": "-1", "count": "",
	} {
		var ve *ValueError
		if err := Set(s, key, value); !errors.As(err, &ve) || ve.Key != key || ve.Reason == "" {
			t.Errorf("%s=%s: %v", key, value, err)
		}
	}
	if s.NodeID != 7 {
		t.Error("a refused value was set")
	}
}

func TestUnknownKeys(t *testing.T) {
	for key, nearest := range map[string]string{
		"log.dir": "log.dirs", "logdirs": "log.dirs", "node-id": "node.id", "allow.insecur": "allow.insecure",
		"replica.lag.max.messages": "", "zzz": "", strings.Repeat("x", 10_000): "",
	} {
		var ue *UnknownKeyError
		if err := Set(defaults(), key, "1"); !errors.As(err, &ue) || ue.Nearest != nearest {
			t.Errorf("%.40s: %v", key, err)
		}
	}
}

// The nearest of several is named, whatever their order.
func TestNearestOfSeveral(t *testing.T) {
	cfg := &struct {
		A int `config:"retention.mb"`
		B int `config:"retention.ms"`
		C int `config:"retention.xx"`
	}{}
	var ue *UnknownKeyError
	if err := Set(cfg, "retention.s", "1"); !errors.As(err, &ue) || ue.Nearest != "retention.ms" {
		t.Errorf("got %v", err)
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leat.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Flags beat the environment, which beats the file, which beats the defaults.
func TestPrecedence(t *testing.T) {
	path := writeFile(t, "# a comment\n\nnode.id = 2\nlisten=file\ncount=2\nlog.dirs=f\n")
	s := defaults()
	err := Load(s, Options{
		Args:      []string{"--config", path, "--node.id=4", "--allow.insecure", "--log.dirs", "c,d", "--seed=1", "--seed=2"},
		Environ:   []string{"LEAT_NODE_ID=3", "LEAT_COUNT=3", "LEAT_LISTEN=", "LEAT_GATEWAY_SERVICE_HOST=10.0.0.1", "COUNT=9", "nonsense"},
		EnvPrefix: "LEAT_",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &sample{
		Base: Base{NodeID: 4, Listen: "file"}, Limits: limits{Bytes: 1 << 20}, LogDirs: []string{"c", "d"},
		Linger: 5 * time.Millisecond, Insecure: true, Ratio: 0.5, Count: 3, Seed: 2,
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
	s = defaults()
	if err := Load(s, Options{Environ: []string{"LEAT_CONFIG=" + path}, EnvPrefix: "LEAT_"}); err != nil || s.NodeID != 2 {
		t.Errorf("LEAT_CONFIG: node.id %d, %v", s.NodeID, err)
	}
	other := writeFile(t, "node.id=22\n")
	s = defaults()
	if err := Load(s, Options{Args: []string{"--config=" + other}, Environ: []string{"LEAT_CONFIG=" + path}, EnvPrefix: "LEAT_"}); err != nil || s.NodeID != 22 {
		t.Errorf("--config beside LEAT_CONFIG: node.id %d, %v", s.NodeID, err)
	}
}

func TestFlagForms(t *testing.T) {
	s := defaults()
	if err := Load(s, Options{Args: []string{"--allow.insecure", "false", "--count", "-5", "--listen="}}); err != nil {
		t.Fatal(err)
	}
	if s.Insecure || s.Count != -5 || s.Listen != "" {
		t.Errorf("got %+v", s)
	}
	var ue *UnknownKeyError
	if err := Load(defaults(), Options{Args: []string{"--verson"}}); !errors.As(err, &ue) || ue.Nearest != "version" {
		t.Errorf("--verson: %v", err)
	}
	for flag, want := range map[string]error{"--help": ErrHelp, "-h": ErrHelp, "--version": ErrVersion} {
		if err := Load(defaults(), Options{Args: []string{"--nonsense", flag}}); !errors.Is(err, want) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// Everything that is wrong is told at once, and where it stands.
func TestAllErrorsAreTold(t *testing.T) {
	path := writeFile(t, "nodeid=1\ncount=x\nno equals sign\ncount=2\n=3\n")
	err := Load(defaults(), Options{
		Args:      []string{"positional", "--config=" + path, "--lingr=1s", "--ratio", "two", "--unknown", "--listen"},
		Environ:   []string{"LEAT_LINGER=soon"},
		EnvPrefix: "LEAT_",
	})
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	want := []string{
		`"positional" is no flag`,
		"--listen needs a value",
		`leat.conf:1: unknown setting "nodeid"; did you mean "node.id"?`,
		`leat.conf:2: count = "x"`,
		"leat.conf:3: ",
		"leat.conf:4: count is given twice, first in line 2",
		"leat.conf:5: ",
		`LEAT_LINGER: linger = "soon"`,
		`flag: unknown setting "lingr"; did you mean "linger"?`,
		`flag: ratio = "two"`,
		`flag: unknown setting "unknown"`,
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%v", len(lines), len(want), err)
	}
	for i, w := range want {
		if !strings.Contains(lines[i], w) {
			t.Errorf("line %d is %q, want %q", i, lines[i], w)
		}
	}
}

func TestFileErrors(t *testing.T) {
	if err := Load(defaults(), Options{Args: []string{"--config=/no/such/file"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	big := writeFile(t, strings.Repeat("#", maxFileBytes+1))
	if err := Load(defaults(), Options{Args: []string{"--config=" + big}}); err == nil {
		t.Error("a huge file is read")
	}
}

func TestValidateIsCalled(t *testing.T) {
	s := defaults()
	s.refuse = errors.New("refused")
	if err := Load(s, Options{}); !errors.Is(err, s.refuse) {
		t.Errorf("got %v", err)
	}
}

func TestUsageAndValues(t *testing.T) {
	s := defaults()
	s.Listen = "127.0.0.1:5331"
	var b bytes.Buffer
	if err := Usage(&b, s, "LEAT_"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--node.id=INT (default 1) [LEAT_NODE_ID]", "Number of the node.", "--listen=STRING (default 127.0.0.1:5331) [LEAT_LISTEN]",
		"--linger=DURATION (default 5ms)", "--log.dirs=LIST", "--limit.bytes=INT (default 1048576)", "--allow.insecure=BOOL", "--ratio=FLOAT",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("usage lacks %q:\n%s", want, b.String())
		}
	}
	// What Values gives can be set again.
	other := &sample{}
	for _, kv := range Values(s) {
		if err := Set(other, kv.Key, kv.Value); err != nil {
			t.Error(err)
		}
	}
	if !reflect.DeepEqual(other, s) {
		t.Errorf("got  %+v\nwant %+v", other, s)
	}
}

// Mistakes of the program itself show at the first call.
func TestBadStructsPanic(t *testing.T) {
	for name, cfg := range map[string]any{
		"no pointer": sample{},
		"nil":        (*sample)(nil),
		"unsupported type": &struct {
			X map[string]string `config:"x"`
		}{},
		"no name": &struct {
			X int `config:""`
		}{},
		"bad default": &struct {
			X int `config:"x" default:"y"`
		}{},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			SetDefaults(cfg)
		}()
	}
}
