// Package topicconfig is the table of what can be set on a topic, by Kafka's
// names: type, default, range, meaning. It is pure: no I/O, no clock.
//
// A value is looked for in three places: on the topic itself, among the
// defaults of the mesh, and in the table here. Both maps hold only what was set.
//
// The caller's duties, in order: check what came from outside with [Validate]
// (and a change of a living topic with [ValidateChange] too) before it is
// stored; turn stored maps into a [Config] with [Parse]; show them with
// [Effective]. Stored maps that a newer release wrote may hold keys that are
// unknown here: Parse leaves those aside, Validate does not.
package topicconfig
