package exit

import (
	"errors"
	"fmt"
)

// The exit codes, which scripts rely on.
const (
	OK          = 0   // everything asked for was done
	Failed      = 1   // it failed; nothing, or nothing known of, was done
	Wrong       = 2   // wrong usage: a flag, an argument or a setting
	Partly      = 3   // some of it was done, some failed
	Unknown     = 4   // timed out, or the outcome is unknown
	Interrupted = 130 // ended by SIGINT or SIGTERM before it was done
)

// Error is an error with an exit code and, if Next is not empty, a sentence
// that says what to do next.
type Error struct {
	Code int
	Err  error
	Next string
	// Quiet errors have been told already, or need no telling.
	Quiet bool
}

// Error is the text of the error beneath.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap gives the error beneath.
func (e *Error) Unwrap() error { return e.Err }

// Usage is a mistake in how the command was called.
func Usage(next, format string, args ...any) *Error {
	return &Error{Code: Wrong, Err: fmt.Errorf(format, args...), Next: next}
}

// Failure is an error with a next step and exit code Failed.
func Failure(next, format string, args ...any) *Error {
	return &Error{Code: Failed, Err: fmt.Errorf(format, args...), Next: next}
}

// With gives err the exit code; nil stays nil.
func With(code int, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Code: code, Err: err}
}

// Silent ends the command with a code and without a word.
func Silent(code int) *Error { return &Error{Code: code, Quiet: true} }

// CodeOf is the exit code of err: OK for nil, Failed where none is stated.
func CodeOf(err error) int {
	var e *Error
	switch {
	case err == nil:
		return OK
	case errors.As(err, &e):
		return e.Code
	default:
		return Failed
	}
}
