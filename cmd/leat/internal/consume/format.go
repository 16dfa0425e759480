package consume

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"unicode/utf8"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
)

// Format appends a record, as it is printed, to dst.
type Format func(dst []byte, topic string, partition int32, r *gatewayv1.ConsumeRecord) []byte

// ValueLines prints the value and LF; a null value prints as nothing.
func ValueLines(dst []byte, _ string, _ int32, r *gatewayv1.ConsumeRecord) []byte {
	return append(append(dst, r.GetValue()...), '\n')
}

// JSONLines prints one JSON object a line.
func JSONLines(dst []byte, topic string, partition int32, r *gatewayv1.ConsumeRecord) []byte {
	dst = append(dst, `{"topic":`...)
	dst = appendString(dst, topic)
	dst = append(dst, `,"partition":`...)
	dst = strconv.AppendInt(dst, int64(partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, r.GetOffset(), 10)
	dst = append(dst, `,"timestamp":`...)
	dst = strconv.AppendInt(dst, r.GetTimestampMs(), 10)
	dst = append(dst, ',')
	dst = appendField(dst, "key", r.Key)
	dst = append(dst, ',')
	dst = appendField(dst, "value", r.Value)
	dst = append(dst, `,"headers":[`...)
	for i, h := range r.GetHeaders() {
		if i > 0 {
			dst = append(dst, ',')
		}
		key := h.GetKey()
		if key == nil {
			key = []byte{} // a header's key is never null
		}
		dst = append(dst, '{')
		dst = appendField(dst, "key", key)
		dst = append(dst, ',')
		dst = appendField(dst, "value", h.Value)
		dst = append(dst, '}')
	}
	dst = append(dst, `],"leader_epoch":`...)
	dst = strconv.AppendInt(dst, int64(r.GetLeaderEpoch()), 10)
	return append(dst, "}\n"...)
}

// appendField writes "name":null, "name":text, or "name_base64":text for what
// is not UTF-8.
func appendField(dst []byte, name string, b []byte) []byte {
	dst = append(append(dst, '"'), name...)
	switch {
	case b == nil:
		return append(dst, `":null`...)
	case utf8.Valid(b):
		return appendString(append(dst, `":`...), string(b))
	default:
		dst = append(dst, `_base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, b)
		return append(dst, '"')
	}
}

// appendString writes valid UTF-8 as a JSON string.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c < 0x20 || c == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// ParseFormat understands the verbs %t topic, %p partition, %o offset, %T
// timestamp in ms, %k key, %h headers, %v value and %%, and the escapes \n, \t,
// \r, \0, \\ and \c. A record ends with LF unless the format ends with an
// escape or a line end of its own; \c adds nothing and so prevents the LF. Null
// prints as nothing; headers print as key=value with commas between.
func ParseFormat(text string) (Format, error) {
	var parts []Format
	var literal []byte
	flush := func() {
		if len(literal) > 0 {
			l := literal
			parts = append(parts, func(dst []byte, _ string, _ int32, _ *gatewayv1.ConsumeRecord) []byte { return append(dst, l...) })
			literal = nil
		}
	}
	ended := false // by an escape or a control character
	for i := 0; i < len(text); i++ {
		c := text[i]
		ended = c == '\n' || c == '\t' || c == '\r' || c == 0
		if c != '%' && c != '\\' {
			literal = append(literal, c)
			continue
		}
		i++
		if i == len(text) {
			return nil, fmt.Errorf("the format ends in a lone %q; write %q for the character itself", c, string([]byte{c, c}))
		}
		if c == '\\' {
			b, ok := map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '0': "\x00", '\\': "\\", 'c': ""}[text[i]]
			if !ok {
				return nil, fmt.Errorf(`the format has an unknown escape \%c; there are \n \t \r \0 \\ \c`, text[i])
			}
			ended = text[i] != '\\'
			literal = append(literal, b...)
			continue
		}
		if text[i] == '%' {
			literal = append(literal, '%')
			continue
		}
		verb, ok := verbs[text[i]]
		if !ok {
			return nil, fmt.Errorf("the format has an unknown verb %%%c; there are %%t %%p %%o %%T %%k %%h %%v %%%%", text[i])
		}
		flush()
		parts = append(parts, verb)
	}
	if !ended {
		literal = append(literal, '\n')
	}
	flush()
	return func(dst []byte, topic string, partition int32, r *gatewayv1.ConsumeRecord) []byte {
		for _, p := range parts {
			dst = p(dst, topic, partition, r)
		}
		return dst
	}, nil
}

var verbs = map[byte]Format{
	't': func(dst []byte, topic string, _ int32, _ *gatewayv1.ConsumeRecord) []byte {
		return append(dst, topic...)
	},
	'p': func(dst []byte, _ string, partition int32, _ *gatewayv1.ConsumeRecord) []byte {
		return strconv.AppendInt(dst, int64(partition), 10)
	},
	'o': func(dst []byte, _ string, _ int32, r *gatewayv1.ConsumeRecord) []byte {
		return strconv.AppendInt(dst, r.GetOffset(), 10)
	},
	'T': func(dst []byte, _ string, _ int32, r *gatewayv1.ConsumeRecord) []byte {
		return strconv.AppendInt(dst, r.GetTimestampMs(), 10)
	},
	'k': func(dst []byte, _ string, _ int32, r *gatewayv1.ConsumeRecord) []byte {
		return append(dst, r.GetKey()...)
	},
	'v': func(dst []byte, _ string, _ int32, r *gatewayv1.ConsumeRecord) []byte {
		return append(dst, r.GetValue()...)
	},
	'h': func(dst []byte, _ string, _ int32, r *gatewayv1.ConsumeRecord) []byte {
		for i, h := range r.GetHeaders() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(append(append(dst, h.GetKey()...), '='), h.GetValue()...)
		}
		return dst
	},
}
