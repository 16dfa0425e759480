// Package errorfs wraps a file system and makes chosen calls fail.
//
// The caller's duties, in order: Wrap a file system; hand the result to the code
// under test; Add rules, or set a hook with OnCall, whenever faults are to begin;
// Clear to end them. A rule counts the calls that match it, so that a test can
// fail the first, the third, or all from the fifth on.
package errorfs
