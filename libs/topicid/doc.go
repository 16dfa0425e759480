// Package topicid names one life of a topic. A topic that is deleted and made
// again under the same name has another id, so nothing of the first can be
// mistaken for the second.
//
// The caller's duties: make ids with [New] from a cryptographic source, keep
// them as 16 bytes on the wire and on disk, and check what comes from outside
// with [FromBytes] or [Parse]. The zero ID stands for "none".
package topicid
