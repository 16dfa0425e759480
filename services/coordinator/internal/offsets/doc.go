// Package offsets turns the records of the group core into records of the
// internal topic __consumer_offsets and back, and reads and writes its partitions
// through the brokers.
//
// The caller's duties, in order: encode what the core wants appended with Batches;
// append the batches one after another with Log.Append, each under the next
// sequence of the attempt; read a shard with Log.Read up to the record that fenced
// it, decoding each record with Decode. A *FormatError of Decode means that a newer
// release wrote the shard: it must not be served.
//
// Keys are protobuf in the deterministic form, so that equal keys are equal bytes
// and compaction sees them as one.
package offsets
