package session

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
)

// tokenVersion is the first byte of a resume token.
const tokenVersion = 1

// resumeToken is what a client needs to resume a membership at any gateway, in one
// word; empty without a membership. Its bytes are
//
//	version (1) | attach, as a varint | member id
//
// in base64url. It is no secret and proves nothing: the coordinator judges.
func resumeToken(memberID string, attach int64) string {
	if memberID == "" {
		return ""
	}
	b := binary.AppendUvarint([]byte{tokenVersion}, uint64(attach))
	return base64.RawURLEncoding.EncodeToString(append(b, memberID...))
}

// errToken says that a token is none of ours.
var errToken = errors.New("resume_token is not one that opened or drain told; leave it out to join anew")

// parseToken reads a resume token.
func parseToken(token string) (memberID string, attach int64, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", errToken, err)
	}
	if len(b) == 0 || b[0] != tokenVersion {
		return "", 0, errToken
	}
	n, size := binary.Uvarint(b[1:])
	if size <= 0 || n == 0 || n > 1<<62 || len(b) == 1+size {
		return "", 0, errToken
	}
	return string(b[1+size:]), int64(n), nil
}
