package record

// BuildFiller encodes a batch without records that takes the offsets [base, next), in
// place of records that compaction removed. It has no producer.
func BuildFiller(base, next int64, leaderEpoch int32) []byte {
	h := Header{
		BaseOffset: base, Length: HeaderSize - LengthOverhead, PartitionLeaderEpoch: leaderEpoch, Magic: Magic,
		LastOffsetDelta: int32(next - 1 - base), BaseTimestamp: NoTimestamp, MaxTimestamp: NoTimestamp,
		ProducerID: NoProducerID, ProducerEpoch: NoProducerEpoch, BaseSequence: NoSequence,
	}
	b := make([]byte, HeaderSize)
	h.Put(b)
	h.CRC = Checksum(b)
	h.Put(b)
	return b
}
