// Package exit holds the documented exit codes of the leat command, and the
// error that carries one of them up to main.
//
// Callers return an ordinary error for what simply failed; they wrap it with
// Usage, Partial or Unknown where another code says more, and give a next step
// where the error itself does not know one.
package exit
