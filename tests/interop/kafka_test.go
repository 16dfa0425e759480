package interop

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/leat-io/leat/libs/record"
)

// kafkaBatch is a batch as franz-go sees it.
type kafkaBatch struct {
	kmsg.RecordBatch
	records []kmsg.Record
}

func franzCodec(c record.Compression) kgo.CompressionCodec {
	return []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}[c]
}

// franzDecode reads a batch with kmsg, checks its length and checksum as a client
// does, and unpacks its records with kgo's codecs.
func franzDecode(t *testing.T, b []byte) kafkaBatch {
	t.Helper()
	var k kafkaBatch
	if err := k.ReadFrom(b); err != nil {
		t.Fatalf("kmsg: %v", err)
	}
	if int(k.Length) != len(b)-12 || k.Magic != 2 {
		t.Fatalf("kmsg reads length %d of %d bytes, magic %d", k.Length, len(b), k.Magic)
	}
	if crc := int32(crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli))); crc != k.CRC {
		t.Fatalf("kmsg reads checksum %08x and the bytes have %08x", uint32(k.CRC), uint32(crc))
	}
	payload := k.Records
	if codec := kgo.CompressionCodecType(k.Attributes & 7); codec != kgo.CodecNone && k.NumRecords > 0 {
		var err error
		if payload, err = kgo.DefaultDecompressor().Decompress(payload, codec); err != nil {
			t.Fatalf("kgo: decompress: %v", err)
		}
	}
	for range k.NumRecords {
		// A record's length counts the bytes after itself; kmsg wants both.
		size, n := varint(payload)
		var r kmsg.Record
		if err := r.ReadFrom(payload[:n+size]); err != nil {
			t.Fatalf("kmsg: record: %v", err)
		}
		k.records = append(k.records, r)
		payload = payload[n+size:]
	}
	if len(payload) > 0 {
		t.Fatalf("%d bytes follow the last record", len(payload))
	}
	return k
}

// varint reads a small zigzag varint that is not negative.
func varint(b []byte) (v, n int) {
	u, shift := 0, 0
	for {
		c := b[n]
		n++
		u |= int(c&0x7f) << shift
		shift += 7
		if c < 0x80 {
			return u >> 1, n
		}
	}
}

// franzEncode writes the batch that records and options describe, with kmsg and
// kgo's codecs.
func franzEncode(t *testing.T, records []record.Record, o record.BuilderOptions) []byte {
	t.Helper()
	var payload []byte
	k := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(len(records) - 1),
		FirstTimestamp: records[0].Timestamp, MaxTimestamp: records[0].Timestamp,
		ProducerID: o.ProducerID, ProducerEpoch: o.ProducerEpoch, FirstSequence: o.BaseSequence, NumRecords: int32(len(records)),
	}
	for i := range records {
		k.MaxTimestamp = max(k.MaxTimestamp, records[i].Timestamp)
		payload = append(payload, franzRecord(&records[i], k.FirstTimestamp, int32(i))...)
	}
	if o.Transactional {
		k.Attributes |= 1 << 4
	}
	if o.Control {
		k.Attributes |= 1 << 5
	}
	k.Records = payload
	if o.Compression != record.CompressionNone {
		c, err := kgo.DefaultCompressor(franzCodec(o.Compression))
		if err != nil {
			t.Fatal(err)
		}
		packed, used := c.Compress(new(bytes.Buffer), payload)
		if used != kgo.CompressionCodecType(o.Compression) {
			t.Fatalf("kgo used codec %d", used)
		}
		k.Records = packed
		k.Attributes |= int16(o.Compression)
	}
	k.Length = int32(49 + len(k.Records))
	b := k.AppendTo(nil)
	k.CRC = int32(crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return k.AppendTo(nil)
}

func franzRecord(r *record.Record, firstTimestamp int64, delta int32) []byte {
	k := kmsg.Record{TimestampDelta64: r.Timestamp - firstTimestamp, OffsetDelta: delta, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, kmsg.Header{Key: string(h.Key), Value: h.Value})
	}
	b := k.AppendTo(nil)
	// The length was written as 0, in one byte.
	k.Length = int32(len(b) - 1)
	return k.AppendTo(nil)
}

// describeOurs and describeTheirs render records so that null, empty and present
// differ; both sides must render alike.
func describeOurs(records []record.Record) string {
	var s bytes.Buffer
	for _, r := range records {
		fmt.Fprintf(&s, "offset %d timestamp %d key %s value %s\n", r.Offset, r.Timestamp, field(r.Key), field(r.Value))
		for _, h := range r.Headers {
			fmt.Fprintf(&s, "  header %q %s\n", h.Key, field(h.Value))
		}
	}
	return s.String()
}

func describeTheirs(k *kafkaBatch) string {
	var s bytes.Buffer
	for _, r := range k.records {
		ts := k.FirstTimestamp + r.TimestampDelta64
		if k.Attributes&8 != 0 {
			ts = k.MaxTimestamp
		}
		fmt.Fprintf(&s, "offset %d timestamp %d key %s value %s\n", k.FirstOffset+int64(r.OffsetDelta), ts, field(r.Key), field(r.Value))
		for _, h := range r.Headers {
			fmt.Fprintf(&s, "  header %q %s\n", h.Key, field(h.Value))
		}
	}
	return s.String()
}

func field(b []byte) string {
	if b == nil {
		return "null"
	}
	if len(b) > 40 {
		return fmt.Sprintf("%d bytes with checksum %08x", len(b), crc32.ChecksumIEEE(b))
	}
	return fmt.Sprintf("%q", b)
}
