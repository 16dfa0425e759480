package produce

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// jsonRecord is a line of --input json: what `consume -o json` prints. Topic,
// offset and leader epoch are accepted, so that its output can be fed back, and
// do not count.
type jsonRecord struct {
	Key         *string         `json:"key"`
	KeyBase64   *string         `json:"key_base64"`
	Value       *string         `json:"value"`
	ValueBase64 *string         `json:"value_base64"`
	Headers     []jsonHeader    `json:"headers"`
	Timestamp   json.RawMessage `json:"timestamp"`
	Partition   *int32          `json:"partition"`
	Topic       any             `json:"topic"`
	Offset      any             `json:"offset"`
	LeaderEpoch any             `json:"leader_epoch"`
}

type jsonHeader struct {
	Key         *string `json:"key"`
	KeyBase64   *string `json:"key_base64"`
	Value       *string `json:"value"`
	ValueBase64 *string `json:"value_base64"`
}

func invalid(format string, args ...any) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_RECORD, format, args...)
}

func parseJSON(line []byte) (*gatewayv1.ProduceRecord, *rpc.Error) {
	if !utf8.Valid(line) {
		return nil, invalid("the line is not UTF-8; write other bytes as key_base64 and value_base64")
	}
	var in jsonRecord
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, invalid("not a JSON object with key, value, headers, timestamp and partition: %v", describeJSON(err))
	}
	if line := bytes.TrimSpace(line); line[0] != '{' {
		return nil, invalid("%s is no JSON object; a record without key and value is {}", line)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("something follows the JSON object; write one object a line")
	}
	rec := &gatewayv1.ProduceRecord{Partition: in.Partition}
	var err *rpc.Error
	if rec.Key, err = bytesOf("key", in.Key, in.KeyBase64); err != nil {
		return nil, err
	}
	if rec.Value, err = bytesOf("value", in.Value, in.ValueBase64); err != nil {
		return nil, err
	}
	for i, h := range in.Headers {
		header, err := headerOf(h)
		if err != nil {
			return nil, invalid("header %d: %s", i+1, err.Message)
		}
		rec.Headers = append(rec.Headers, header)
	}
	rec.TimestampMs, err = timestampOf(in.Timestamp)
	return rec, err
}

// describeJSON drops what only matters to the makers of a Go program.
func describeJSON(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Sprintf("%s must not be a %s", wrong.Field, wrong.Value)
	}
	return string(bytes.TrimPrefix([]byte(err.Error()), []byte("json: ")))
}

func headerOf(h jsonHeader) (*typev1.Header, *rpc.Error) {
	key, err := bytesOf("key", h.Key, h.KeyBase64)
	if err != nil {
		return nil, err
	}
	if key == nil {
		return nil, invalid("it has no key; a header's key may be empty and is never null")
	}
	value, err := bytesOf("value", h.Value, h.ValueBase64)
	if err != nil {
		return nil, err
	}
	return &typev1.Header{Key: key, Value: value}, nil
}

// bytesOf gives the bytes of a field that comes as text or as base64; null, or
// neither, is nil.
func bytesOf(name string, text, encoded *string) ([]byte, *rpc.Error) {
	switch {
	case text != nil && encoded != nil:
		return nil, invalid("both %s and %s_base64 are given; leave out one", name, name)
	case text != nil:
		return []byte(*text), nil
	case encoded != nil:
		b, err := base64.StdEncoding.DecodeString(*encoded)
		if err != nil {
			return nil, invalid("%s_base64 is not base64: %v", name, err)
		}
		return present(b), nil
	default:
		return nil, nil
	}
}

// timestampOf takes ms since 1970 or an RFC 3339 text; null or absent is nil.
func timestampOf(raw json.RawMessage) (*int64, *rpc.Error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var ms int64
	if err := json.Unmarshal(raw, &ms); err == nil {
		if ms < 0 {
			if ms == -1 { // how consume prints a record without one
				return nil, nil
			}
			return nil, invalid("timestamp %d is negative", ms)
		}
		return &ms, nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err == nil {
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
			ms = t.UnixMilli()
			return &ms, nil
		}
	}
	return nil, invalid("timestamp %s is neither milliseconds since 1970 nor RFC 3339", raw)
}
