package record

import (
	"encoding/binary"
	"hash/crc32"
)

// castagnoli is the CRC32C table; it is computed once and never changes.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC32C of a batch: of hdr from the attributes on, followed by
// rest. The first HeaderSize bytes must be in hdr.
func Checksum(hdr []byte, rest ...[]byte) uint32 {
	crc := crc32.Update(0, castagnoli, hdr[posAttributes:])
	for _, v := range rest {
		crc = crc32.Update(crc, castagnoli, v)
	}
	return crc
}

// ChecksumStart is the first byte of a batch that its checksum covers.
const ChecksumStart = posAttributes

// UpdateChecksum carries a checksum on over more bytes, for who has a batch in
// pieces; it starts from 0 at byte ChecksumStart.
func UpdateChecksum(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// PatchBaseOffset sets the base offset in place. It lies outside the checksum.
// hdr holds at least the first HeaderSize bytes of a batch.
func PatchBaseOffset(hdr []byte, offset int64) {
	binary.BigEndian.PutUint64(hdr[posBaseOffset:], uint64(offset))
}

// PatchPartitionLeaderEpoch sets the leader epoch in place. It lies outside the
// checksum. hdr holds at least the first HeaderSize bytes of a batch.
func PatchPartitionLeaderEpoch(hdr []byte, epoch int32) {
	binary.BigEndian.PutUint32(hdr[posLeaderEpoch:], uint32(epoch))
}

// PatchLogAppendTime stamps a batch with the log's own time, in ms: it sets the
// timestamp type and the maximum timestamp, which then is that of every record,
// and computes the checksum anew over hdr and rest. hdr is changed in place and
// holds at least the first HeaderSize bytes; rest is the remainder and only read.
func PatchLogAppendTime(hdr []byte, rest [][]byte, timestamp int64) {
	be := binary.BigEndian
	attrs := be.Uint16(hdr[posAttributes:])
	be.PutUint16(hdr[posAttributes:], attrs|uint16(attrLogAppendTime))
	be.PutUint64(hdr[posMaxTimestamp:], uint64(timestamp))
	be.PutUint32(hdr[posCRC:], Checksum(hdr, rest...))
}

// PatchProducer sets the producer's id, epoch and first sequence, and computes the
// checksum anew over hdr and rest. hdr is changed in place and holds at least the
// first HeaderSize bytes; rest is the remainder and only read.
func PatchProducer(hdr []byte, rest [][]byte, id int64, epoch int16, baseSequence int32) {
	be := binary.BigEndian
	be.PutUint64(hdr[posProducerID:], uint64(id))
	be.PutUint16(hdr[posProducerEpoch:], uint16(epoch))
	be.PutUint32(hdr[posBaseSequence:], uint32(baseSequence))
	be.PutUint32(hdr[posCRC:], Checksum(hdr, rest...))
}
