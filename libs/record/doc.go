// Package record reads and writes Kafka's record batch format, version 2, byte
// for byte. It knows bytes only: no topics, no network, no files.
//
// A batch on the wire and on disk (big endian):
//
//	 0       8      12      16  17     21    23      27        35        43
//	 ┌───────┬───────┬───────┬───┬──────┬─────┬───────┬─────────┬─────────┐
//	 │ base  │length │leader │mag│ crc  │attri│ last  │ base    │ max     │
//	 │ offset│       │epoch  │=2 │      │butes│ delta │timestamp│timestamp│
//	 └───────┴───────┴───────┴───┴──────┴─────┴───────┴─────────┴─────────┘
//	43        51    53       57       61
//	 ┌─────────┬─────┬────────┬────────┬──────────────────────────────────┐
//	 │producer │epoch│ base   │ number │ records, compressed as a whole   │
//	 │id       │     │sequence│of recs │ if the attributes say so         │
//	 └─────────┴─────┴────────┴────────┴──────────────────────────────────┘
//
// The length counts the bytes after itself. The CRC32C covers everything from
// the attributes on, so that base offset and leader epoch can be set without
// touching it.
//
// A producer's duties, in order: NewBuilder, Append until it answers false or an
// error for that record, Build, Reset. A server's: Validate what came in over the
// network, once; set the base offset and leader epoch with the Patch functions;
// store and serve the bytes as they are. A consumer's: split what it fetched with
// NextBatch, Validate each batch, then read it with a Reader, taking the next
// position from Header.NextOffset, never from the last record seen: a batch may
// hold none.
//
// Null, empty and present are three different things for a key, a value and a
// header's value: a nil slice is null, an empty non-nil slice is empty.
//
// Nothing here panics on any input, and nothing is allocated because a length
// field says so before the bytes are there.
package record
