package record

import (
	"errors"
	"testing"
)

// An empty key is a key; no key is none.
func TestRequireKeys(t *testing.T) {
	for c := CompressionNone; c <= CompressionZstd; c++ {
		o := DefaultBuilderOptions()
		o.Compression = c
		good := build(t, o, Record{Key: []byte("k")}, Record{Key: []byte{}})
		if err := RequireKeys([][]byte{good[:30], good[30:]}, 0); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		bad := build(t, o, Record{Key: []byte("k")}, Record{Value: []byte("v")}, Record{Key: []byte("k")})
		var invalid *InvalidError
		if err := RequireKeys([][]byte{bad}, 0); !errors.As(err, &invalid) || invalid.Record != 1 {
			t.Fatalf("%s: %v", c, err)
		}
		o.Control = true
		if err := RequireKeys([][]byte{build(t, o, Record{})}, 0); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
}
