package produce

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// MaxRecordBytes bounds a line of the input: what is longer cannot go through
// one gRPC message between Leat's services.
const MaxRecordBytes = 15 << 20

// maxSlice is how many items one Read returns at most.
const maxSlice = 1000

// Item is one record of the input, or why there is none.
type Item struct {
	// Number counts the records of the input from 1.
	Number int64
	// Record is what to send; nil with Err.
	Record *gatewayv1.ProduceRecord
	// Err is set where the input holds no sendable record at this place.
	Err *rpc.Error
}

// Input reads records.
type Input struct {
	r      *bufio.Reader
	parse  func(line []byte) (*gatewayv1.ProduceRecord, *rpc.Error)
	skip   func(line []byte) bool
	extra  []*typev1.Header
	part   *int32
	number int64
	lines  int64 // read so far
	line   []byte
}

// Options apply to every record of an input.
type Options struct {
	// Headers are added to each record, after its own.
	Headers []*typev1.Header
	// Partition is where records go that name none themselves; nil: wherever
	// the partitioner says.
	Partition *int32
}

// NewLines reads a record from each line: it ends at LF, which is not part of
// it, while CR is; a last line without LF counts. At most one of separator and
// keys is given: the key is what precedes the first separator, or what keys
// matches first, of its first group if it has one. Without a match the key is
// null.
func NewLines(r io.Reader, o Options, separator []byte, keys *regexp.Regexp) *Input {
	in := &Input{r: bufio.NewReaderSize(r, 64<<10), extra: o.Headers, part: o.Partition}
	in.skip = func([]byte) bool { return false }
	in.parse = func(line []byte) (*gatewayv1.ProduceRecord, *rpc.Error) {
		rec := &gatewayv1.ProduceRecord{}
		value := bytes.Clone(line)
		if value == nil {
			value = []byte{}
		}
		switch {
		case len(separator) > 0:
			if key, rest, ok := bytes.Cut(value, separator); ok {
				rec.Key, value = present(key), present(rest)
			}
		case keys != nil:
			if m := keys.FindSubmatchIndex(value); m != nil {
				at := 0
				if len(m) > 2 {
					at = 2
				}
				if m[at] >= 0 {
					rec.Key = present(value[m[at]:m[at+1]])
				}
			}
		}
		rec.Value = value
		return rec, nil
	}
	return in
}

// NewJSON reads a record from each line of JSON; empty lines are passed over
// and have no number.
func NewJSON(r io.Reader, o Options) *Input {
	return &Input{
		r: bufio.NewReaderSize(r, 64<<10), extra: o.Headers, part: o.Partition,
		parse: parseJSON,
		skip:  func(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 },
	}
}

// present keeps an empty field apart from a null one.
func present(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Read returns the records at hand, waiting for at least one: it does not wait
// for more input while it holds some. It returns io.EOF after the last.
func (in *Input) Read() ([]Item, error) {
	var items []Item
	for len(items) < maxSlice {
		if len(items) > 0 && !in.lineAtHand() {
			return items, nil
		}
		line, tooLong, err := in.readLine()
		if err != nil {
			if len(items) > 0 && errors.Is(err, io.EOF) {
				return items, nil // the next call meets the end again
			}
			return items, err
		}
		in.lines++
		if in.skip(line) && !tooLong {
			continue
		}
		in.number++
		items = append(items, in.item(line, tooLong))
	}
	return items, nil
}

func (in *Input) item(line []byte, tooLong bool) Item {
	item := Item{Number: in.number}
	if tooLong {
		item.Err = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE,
			"record %d is longer than %d bytes, which no gRPC message of Leat can hold; split it", in.number, MaxRecordBytes)
		return item
	}
	rec, err := in.parse(line)
	if err != nil {
		err.Message = fmt.Sprintf("record %d (line %d): %s", in.number, in.lines, err.Message)
		item.Err = err
		return item
	}
	rec.Headers = append(rec.Headers, in.extra...)
	if rec.Partition == nil {
		rec.Partition = in.part
	}
	item.Record = rec
	return item
}

// lineAtHand reports whether a whole line can be read without waiting.
func (in *Input) lineAtHand() bool {
	n := in.r.Buffered()
	if n == 0 {
		return false
	}
	b, _ := in.r.Peek(n)
	return bytes.IndexByte(b, '\n') >= 0
}

// readLine returns the next line without its LF, valid until the next call. Of
// a line above MaxRecordBytes it returns the beginning, and true.
func (in *Input) readLine() (line []byte, tooLong bool, err error) {
	in.line = in.line[:0]
	for {
		piece, err := in.r.ReadSlice('\n')
		if len(in.line)+len(bytes.TrimSuffix(piece, []byte("\n"))) > MaxRecordBytes {
			tooLong = true
		}
		if !tooLong {
			in.line = append(in.line, piece...)
		}
		switch {
		case err == nil:
			return bytes.TrimSuffix(in.line, []byte("\n")), tooLong, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			if len(in.line) == 0 && !tooLong {
				return nil, false, io.EOF
			}
			return in.line, tooLong, nil
		default:
			return nil, false, err
		}
	}
}
