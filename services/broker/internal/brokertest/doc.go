// Package brokertest is a controller for tests of the broker: it serves the
// metadata stream and accepts registrations from a state that the test sets.
//
// The caller's duties, in order: Start a Controller; give its address to the
// broker or make a Watcher; change the state with its methods. Everything ends
// with the test.
package brokertest
