// Package history collects what producers were told and readers were given, and
// tells whether a log can have been behind it.
//
// The caller's duties, in order: New; Acks for each producer and Reader for each consumer, writers that take the
// lines of `leat produce --acks-out -` and `leat consume -o json` as they come (or
// Acked and Failed, for producers that are no commands); Check at the end, with
// the whole log as one last reader got it. All of it is safe for concurrent use.
//
// Producer p sends records with the values "p-1", "p-2", … in this order, and keys
// that are a function of the number: Key. Feed writes such records.
package history
