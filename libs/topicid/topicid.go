package topicid

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
)

// Size is the length of an id in bytes.
const Size = 16

// ID is a topic id: 16 random bytes. The zero value is no topic's id.
type ID [Size]byte

// New draws an id from r, which should be crypto/rand.Reader. It fails only if r
// does. Ids whose text form would begin with a dash are drawn again, because
// people paste them after flags; so is the zero id.
func New(r io.Reader) (ID, error) {
	for {
		var id ID
		if _, err := io.ReadFull(r, id[:]); err != nil {
			return ID{}, fmt.Errorf("topic id: draw random bytes: %w", err)
		}
		if id.stamp(4); id.String()[0] != '-' {
			return id, nil
		}
	}
}

// Derive makes the id that belongs to a seed: the same seed, the same id. It is
// for a request that may be repeated, and whose seed comes with no other one.
func Derive(seed []byte) ID {
	for {
		sum := sha256.Sum256(seed)
		id := ID(sum[:Size])
		if id.stamp(8); id.String()[0] != '-' {
			return id
		}
		seed = sum[:]
	}
}

// stamp sets version and variant as the id would have as a UUID: tools of
// Kafka's world print ids that way.
func (id *ID) stamp(version byte) {
	id[6] = id[6]&0x0f | version<<4
	id[8] = id[8]&0x3f | 0x80
}

// FromBytes takes an id from its 16 bytes. It refuses any other length, and the
// zero id.
func FromBytes(b []byte) (ID, error) {
	if len(b) != Size {
		return ID{}, fmt.Errorf("topic id: %d bytes instead of %d", len(b), Size)
	}
	id := ID(b)
	if id.IsZero() {
		return ID{}, fmt.Errorf("topic id: all bytes are zero, which names no topic")
	}
	return id, nil
}

// Parse reads the text form that String writes.
func Parse(s string) (ID, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return ID{}, fmt.Errorf("topic id %q: want 22 characters of base64url: %w", s, err)
	}
	return FromBytes(b)
}

// String is the form for people: 22 characters of base64url, as Kafka prints
// topic ids.
func (id ID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// Hex is the form for keys and file names: 32 lower-case hexadecimal digits.
func (id ID) Hex() string { return hex.EncodeToString(id[:]) }

// ParseHex reads the form that Hex writes.
func ParseHex(s string) (ID, error) {
	b, err := hex.DecodeString(s)
	if err != nil {
		return ID{}, fmt.Errorf("topic id %q: want 32 hexadecimal digits: %w", s, err)
	}
	return FromBytes(b)
}

// Bytes returns a fresh slice with the 16 bytes, for messages.
func (id ID) Bytes() []byte { return append([]byte(nil), id[:]...) }

// IsZero tells whether the id is the zero id, which names no topic.
func (id ID) IsZero() bool { return id == ID{} }

// Compare orders ids by their bytes: -1, 0 or 1.
func (id ID) Compare(other ID) int {
	for i := range id {
		switch {
		case id[i] < other[i]:
			return -1
		case id[i] > other[i]:
			return 1
		}
	}
	return 0
}
