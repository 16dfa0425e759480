package record

import (
	"errors"
	"fmt"
)

// ErrRecordTooLarge is what a TooLargeError wraps: a record that does not fit
// alone, or a batch above the limit it is checked against.
var ErrRecordTooLarge = errors.New("record too large")

// TooLargeError says by how much something passes the limit. It satisfies
// errors.Is(err, ErrRecordTooLarge).
type TooLargeError struct {
	Size  int // bytes of the encoded batch
	Limit int // bytes allowed (max.message.bytes)
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%v: the batch takes %d bytes where max.message.bytes allows %d; split the record or raise the limit of the topic",
		ErrRecordTooLarge, e.Size, e.Limit)
}

// Unwrap makes errors.Is(err, ErrRecordTooLarge) hold.
func (e *TooLargeError) Unwrap() error { return ErrRecordTooLarge }

// Reason classifies an InvalidError.
type Reason int

// The reasons of an InvalidError. All but UnsupportedMagic and
// UnsupportedCompression are what Kafka calls INVALID_RECORD.
const (
	ReasonUnspecified            Reason = iota
	ReasonUnsupportedMagic              // a format other than version 2
	ReasonUnsupportedCompression        // a codec number that is not assigned
	ReasonBadCount                      // a number of records that is negative or does not match
	ReasonBadOffsets                    // offset deltas out of line
	ReasonBadProducer                   // producer id, epoch and sequence contradict one another
	ReasonBadRecord                     // a record whose fields do not add up
	ReasonBadCompression                // a payload that its codec rejects
	ReasonDecodedTooLarge               // a payload that unpacks to more than max.decoded.bytes
	ReasonTrailingBytes                 // bytes after the batch or after the last record
	ReasonControlNotAllowed             // a control batch from a client
	ReasonBadAttributes                 // attribute bits that the sender may not set
	ReasonNoKey                         // a record without a key where each needs one
)

var reasonNames = [...]string{
	"unspecified", "unsupported magic", "unsupported compression", "bad record count", "bad offsets",
	"bad producer fields", "bad record", "bad compressed payload", "decoded payload too large", "trailing bytes",
	"control batch not allowed", "bad attributes", "no key",
}

func (r Reason) String() string {
	if r < 0 || int(r) >= len(reasonNames) {
		return fmt.Sprintf("reason %d", int(r))
	}
	return reasonNames[r]
}

// InvalidError says that a batch is whole, as far as its checksum goes, but means
// nothing: whoever wrote it is wrong, and sending it again will not help.
type InvalidError struct {
	Reason   Reason
	Position int // bytes from the start of the batch; in a compressed payload, 61 plus the bytes from the start of the decoded payload
	Record   int // index of the record at fault, -1 for the batch as a whole
	Detail   string
}

func (e *InvalidError) Error() string {
	if e.Record >= 0 {
		return fmt.Sprintf("invalid record batch: %s in record %d at byte %d: %s; fix the program that encoded it", e.Reason, e.Record, e.Position, e.Detail)
	}
	return fmt.Sprintf("invalid record batch: %s at byte %d: %s; fix the program that encoded it", e.Reason, e.Position, e.Detail)
}

// CorruptError says that the bytes are not those that were written: cut short, or
// with another checksum. Sending the batch again may help.
type CorruptError struct {
	Position int // bytes from the start of the batch where the fault shows
	Detail   string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt record batch at byte %d: %s; send it again, or read it from another replica", e.Position, e.Detail)
}

func invalid(reason Reason, pos int, format string, args ...any) error {
	return &InvalidError{Reason: reason, Position: pos, Record: -1, Detail: fmt.Sprintf(format, args...)}
}

func corrupt(pos int, format string, args ...any) error {
	return &CorruptError{Position: pos, Detail: fmt.Sprintf(format, args...)}
}
