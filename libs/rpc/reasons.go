package rpc

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

//go:generate go run ./internal/gen-errors -out ../../docs/errors.md

// ReasonInfo is what is published about one reason.
type ReasonInfo struct {
	// Reason is the enum value.
	Reason typev1.ErrorReason
	// Name is the stable name, as it travels and as people type it.
	Name string
	// Code is the canonical gRPC code.
	Code codes.Code
	// Outcome is what holds of the request unless the error says otherwise.
	Outcome typev1.Outcome
	// Action is what a client of any age should do.
	Action typev1.Action
	// RetryDelay is the usual earliest useful retry; 0 where a retry is pointless.
	RetryDelay time.Duration
	// Meaning says what happened, in a sentence.
	Meaning string
	// NextStep says what to do, in a sentence.
	NextStep string
}

const reasonPrefix = "ERROR_REASON_"

// ReasonName gives the name of a reason as it travels: without the prefix of
// the enum. Numbers of newer releases give the number.
func ReasonName(r typev1.ErrorReason) string {
	return strings.TrimPrefix(r.String(), reasonPrefix)
}

// Reasons lists all reasons in the order of their numbers.
func Reasons() []ReasonInfo {
	out := make([]ReasonInfo, 0, len(reasonTable))
	for _, row := range reasonTable {
		out = append(out, row.info())
	}
	return out
}

// ExplainReason finds a reason by name, in any case, with or without the prefix
// of the enum. For an unknown name it gives that of INTERNAL_BUG and false.
func ExplainReason(name string) (ReasonInfo, bool) {
	name = strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(name)), reasonPrefix)
	if v, ok := typev1.ErrorReason_value[reasonPrefix+name]; ok && v != 0 {
		return infoOf(typev1.ErrorReason(v)), true
	}
	return infoOf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG), false
}

// infoOf finds a reason's row; that of INTERNAL_BUG for one that is not in the
// table.
func infoOf(r typev1.ErrorReason) ReasonInfo {
	i, ok := slices.BinarySearchFunc(reasonTable, r, func(row reasonRow, r typev1.ErrorReason) int {
		return int(row.reason) - int(r)
	})
	if !ok {
		i = 0
	}
	return reasonTable[i].info()
}

// reasonRow is a row of the table, in the short form in which it is written.
type reasonRow struct {
	reason  typev1.ErrorReason
	code    codes.Code
	outcome typev1.Outcome
	action  typev1.Action
	retryMs int
	meaning string
	next    string
}

func (r reasonRow) info() ReasonInfo {
	return ReasonInfo{
		Reason: r.reason, Name: ReasonName(r.reason), Code: r.code, Outcome: r.outcome, Action: r.action,
		RetryDelay: time.Duration(r.retryMs) * time.Millisecond, Meaning: r.meaning, NextStep: r.next,
	}
}
