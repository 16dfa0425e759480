package topicid

import (
	"bytes"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
)

func TestNewRoundTrips(t *testing.T) {
	seen := map[ID]bool{}
	for range 1000 {
		id, err := New(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if seen[id] || id.IsZero() {
			t.Fatalf("id %v came twice or is zero", id)
		}
		seen[id] = true
		if s := id.String(); len(s) != 22 || strings.HasPrefix(s, "-") {
			t.Fatalf("text form %q", s)
		}
		if got, err := Parse(id.String()); err != nil || got != id {
			t.Fatalf("Parse(%q) = %v, %v", id.String(), got, err)
		}
		if got, err := ParseHex(id.Hex()); err != nil || got != id || len(id.Hex()) != 32 {
			t.Fatalf("ParseHex(%q) = %v, %v", id.Hex(), got, err)
		}
		if got, err := FromBytes(id.Bytes()); err != nil || got != id {
			t.Fatalf("FromBytes = %v, %v", got, err)
		}
	}
}

func TestDerive(t *testing.T) {
	seen := map[ID]bool{}
	for i := range 1000 {
		seed := []byte{byte(i), byte(i >> 8)}
		id := Derive(seed)
		if id != Derive(seed) || seen[id] || id.IsZero() || id.String()[0] == '-' {
			t.Fatalf("seed %d gives %v", i, id)
		}
		seen[id] = true
	}
}

func TestNewDrawsAgain(t *testing.T) {
	// 0xf8 in front gives a leading dash in base64url; the second draw does not.
	src := append(append([]byte{0xf8}, make([]byte, 15)...), bytes.Repeat([]byte{1}, 16)...)
	id, err := New(bytes.NewReader(src))
	if err != nil || id[0] != 1 {
		t.Fatalf("New = %v, %v", id, err)
	}
	boom := errors.New("boom")
	if _, err := New(iotest.ErrReader(boom)); !errors.Is(err, boom) {
		t.Fatalf("New on a broken source: %v", err)
	}
}

func TestBadForms(t *testing.T) {
	for _, s := range []string{"", "a", strings.Repeat("A", 22), strings.Repeat("!", 22), strings.Repeat("A", 23)} {
		if id, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", s, id)
		}
	}
	for _, s := range []string{"", "zz", strings.Repeat("0", 32), strings.Repeat("1", 34)} {
		if id, err := ParseHex(s); err == nil {
			t.Errorf("ParseHex(%q) = %v, want an error", s, id)
		}
	}
	for _, n := range []int{0, 15, 16, 17} {
		if _, err := FromBytes(make([]byte, n)); err == nil {
			t.Errorf("FromBytes of %d zero bytes: want an error", n)
		}
	}
}

func TestCompare(t *testing.T) {
	a, b := ID{0: 1}, ID{0: 1, 15: 1}
	if a.Compare(b) != -1 || b.Compare(a) != 1 || a.Compare(a) != 0 {
		t.Fatal("Compare does not order by bytes")
	}
}
