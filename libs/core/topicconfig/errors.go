package topicconfig

import "fmt"

// UnknownKeyError is a key that is in no table.
type UnknownKeyError struct {
	Key     string // as given
	Nearest string // the known key that looks most like it; empty: none does
}

// Error tells the key and the nearest one.
func (e *UnknownKeyError) Error() string {
	if e.Nearest == "" {
		return fmt.Sprintf("unknown topic config %q; see the list of topic configs", e.Key)
	}
	return fmt.Sprintf("unknown topic config %q; did you mean %q?", e.Key, e.Nearest)
}

// GoneKeyError is a key of Kafka that means nothing here.
type GoneKeyError struct {
	Key     string // as given
	Instead string // what takes its place
}

// Error tells the key and what takes its place.
func (e *GoneKeyError) Error() string {
	return fmt.Sprintf("topic config %q does not exist (any more): %s", e.Key, e.Instead)
}

// ValueError is a value that a key does not take.
type ValueError struct {
	Key   string // the key
	Value string // as given
	Want  string // what it takes
}

// Error tells the key, the value and what is taken.
func (e *ValueError) Error() string {
	return fmt.Sprintf("topic config %s=%q is not allowed; give %s", e.Key, e.Value, e.Want)
}

// ConflictError is a value that does not go with another one.
type ConflictError struct {
	Key   string // the key that is refused
	Other string // the key it does not go with
	Why   string // what is wrong and what to do
}

// Error tells what does not go together.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("topic config %s does not go with %s: %s", e.Key, e.Other, e.Why)
}

// FixedError is a change of something that cannot change.
type FixedError struct {
	Key      string // the key
	Old, New string // values before and as asked for
}

// Error tells what cannot change.
func (e *FixedError) Error() string {
	return fmt.Sprintf("topic config %s is fixed when a topic is created: it is %q and cannot become %q; create another topic", e.Key, e.Old, e.New)
}
