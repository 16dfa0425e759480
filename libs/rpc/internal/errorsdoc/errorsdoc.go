package errorsdoc

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

const head = `<!-- Generated from libs/rpc by "go generate ./rpc"; do not edit. -->

# Errors

Every failure is a gRPC status with one ` + "`google.rpc.ErrorInfo`" + ` whose domain is ` + "`leat`" + ` and whose reason is
one of the names below, a ` + "`google.rpc.RetryInfo`" + ` where a retry makes sense, and a ` + "`leat.type.v1.Error`" + ` with
the rest. Inside stream messages the same ` + "`leat.type.v1.Error`" + ` travels as a field. ` + "`leat explain REASON`" + ` prints
what this page says.

**Outcome** tells whether what was asked for took place: *done*, *not done*, or *unknown*, which means that it may
have, or may still. What the table gives is what holds unless the error itself says otherwise. Retrying an unknown one may do
the work twice.

**Action** is what a client of any age should do, also about a reason that it does not know:

| action | what to do |
|---|---|
| RETRY | try again after the delay, with fresh metadata |
| REOPEN | open the stream again, here or elsewhere |
| REJOIN | drop everything held and join the group anew |
| DROP_PARTITION | stop working on the named partition; the rest goes on |
| CHOOSE | the application chooses a position; the partition is paused until then |
| STOP | give up: another process has taken this one's place, or it may not go on |
| FIX | the request is wrong; change it |

`

// Render gives the whole page.
func Render() []byte {
	var b bytes.Buffer
	b.WriteString(head)
	b.WriteString("| reason | code | outcome | action | retry after |\n|---|---|---|---|---|\n")
	for _, r := range rpc.Reasons() {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s | %s |\n",
			r.Name, strings.ToLower(r.Name), CodeName(r), OutcomeName(r), ActionName(r), delay(r.RetryDelay))
	}
	for _, r := range rpc.Reasons() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s\n", r.Name, r.Meaning, r.NextStep)
	}
	return b.Bytes()
}

// CodeName writes the code as it is spelled in google.rpc.Code.
func CodeName(r rpc.ReasonInfo) string {
	var b strings.Builder
	for i, c := range r.Code.String() {
		if i > 0 && c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(c)
	}
	return strings.ToUpper(b.String())
}

// OutcomeName writes the outcome in words.
func OutcomeName(r rpc.ReasonInfo) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(r.Outcome.String(), "OUTCOME_"), "_", " "))
}

// ActionName writes the action without the prefix of its enum.
func ActionName(r rpc.ReasonInfo) string {
	return strings.TrimPrefix(r.Action.String(), "ACTION_")
}

func delay(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return d.String()
}
