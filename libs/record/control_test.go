package record

import (
	"bytes"
	"testing"
)

func TestFence(t *testing.T) {
	want := Fence{ShardEpoch: 7 << 40, Attempt: 3}
	b, err := BuildFence(want, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Validate([][]byte{b}, ValidateOptions{AllowControl: true}); err != nil {
		t.Fatal(err)
	}
	if kind, got, ok := Control(b); kind != ControlFence || got != want || !ok {
		t.Fatal(kind, got, ok)
	}
	for n := range b {
		if _, _, ok := Control(b[:n]); ok {
			t.Fatalf("%d bytes of a fence were understood", n)
		}
	}
	for i := range b[HeaderSize:] {
		broken := bytes.Clone(b)
		broken[HeaderSize+i] ^= 0x80
		Control(broken) // must not panic
	}
	for _, c := range []struct {
		a, b Fence
		less bool
	}{
		{Fence{1, 5}, Fence{2, 0}, true},
		{Fence{2, 0}, Fence{1, 5}, false},
		{Fence{2, 1}, Fence{2, 2}, true},
		{Fence{2, 2}, Fence{2, 2}, false},
	} {
		if c.a.Less(c.b) != c.less {
			t.Errorf("%v < %v is not %v", c.a, c.b, c.less)
		}
	}
}
