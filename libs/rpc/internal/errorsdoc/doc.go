// Package errorsdoc writes docs/errors.md from the table of reasons. The caller
// has no duties.
package errorsdoc
