package commitlog

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// segment checks one segment: every batch, and with it every index entry that
// speaks of that batch.
func (v *verifier) segment(segs []*segment, i int) (err error) {
	seg := segs[i]
	f, err := v.fs.OpenRead(seg.logPath)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	v.r.Bytes += size
	if i == 0 {
		v.next = seg.base
	} else if !v.follows(seg.base) {
		v.r.badLog = true
		v.r.fault(seg.logPath, 0, seg.base, "the segment before ends before offset %d, where this one should begin", v.next)
	}
	v.next = seg.base
	x, err := v.openIndexes(seg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	sc := newScanner(f, size, v.scan)
	pos := int64(0)
	maxTS := int64(noTimestamp)
	for pos < size {
		h, reason, err := v.batchAt(&sc, f, pos)
		if err != nil {
			return err
		}
		if reason != "" {
			at := pos
			if pos, err = v.damaged(&sc, f, seg, pos, &h, reason); err != nil {
				return err
			}
			if x.upTo > at {
				x.upTo = at
			}
			if pos == 0 {
				break
			}
			continue
		}
		if err := x.at(pos, &h, maxTS); err != nil {
			return err
		}
		if h.NumRecords > 0 {
			maxTS = max(maxTS, h.MaxTimestamp)
		}
		v.r.Batches++
		v.r.Records += int64(h.NumRecords)
		v.r.epochs, _ = v.r.epochs.assign(h.PartitionLeaderEpoch, h.BaseOffset)
		v.next, v.lost = h.NextOffset(), false
		pos += int64(h.Size())
	}
	return x.finish(size, maxTS)
}

// follows is recovery's rule (checkPlace). Behind damage any gap is believed.
func (v *verifier) follows(base int64) bool {
	gapsBelow := v.marks.gapsBelow
	if v.lost {
		gapsBelow = math.MaxInt64
	}
	return checkPlace(base, v.next, gapsBelow) == nil
}

// batchAt checks the batch at a byte. reason says what is wrong with it; the header
// has the length by which it can be skipped, if that can be believed.
func (v *verifier) batchAt(sc *scanner, f vfs.File, pos int64) (h record.Header, reason string, err error) {
	h, err = sc.header(pos)
	if err == nil {
		err = sc.verify(pos, &h)
	} else if h.Magic != record.Magic || h.Size() < record.HeaderSize || int64(h.Size()) > sc.size-pos {
		h.Length = 0
	}
	switch {
	case isBatchFault(err):
		return h, detailOf(err), nil
	case err != nil:
		return h, "", err
	case !v.follows(h.BaseOffset):
		return h, fmt.Sprintf("the base offset is %d where %d belongs", h.BaseOffset, v.next), nil
	case h.PartitionLeaderEpoch < v.r.epochs.latest() || h.PartitionLeaderEpoch < 0:
		return h, fmt.Sprintf("the leader epoch is %d after %d", h.PartitionLeaderEpoch, v.r.epochs.latest()), nil
	case v.haveEp && v.stored.at(h.BaseOffset) != h.PartitionLeaderEpoch:
		return h, fmt.Sprintf("the leader epoch is %d, and %s says %d", h.PartitionLeaderEpoch, epochFile, v.stored.at(h.BaseOffset)), nil
	case v.o.SkipRecords:
		return h, "", nil
	}
	if cap(v.batch) < h.Size() {
		v.batch = make([]byte, h.Size()+h.Size()/4)
	}
	b := v.batch[:h.Size()]
	if n, err := f.ReadAt(b, pos); n < len(b) {
		return h, "", err
	}
	return h, v.records(b), nil
}

// records decodes a batch and says what is wrong inside, or "".
func (v *verifier) records(b []byte) string {
	if err := v.reader.Reset(b); err != nil {
		return detailOf(err)
	}
	h := v.reader.Header()
	for v.reader.Next() {
		if r := v.reader.Record(); h.Attributes.TimestampType() == record.CreateTime && r.Timestamp > h.MaxTimestamp {
			return fmt.Sprintf("the record at offset %d has timestamp %d, above the batch's maximum %d", r.Offset, r.Timestamp, h.MaxTimestamp)
		}
	}
	if err := v.reader.Err(); err != nil {
		return detailOf(err)
	}
	return ""
}

// detailOf is what a fault says, without the advice that fits other places.
func detailOf(err error) string {
	var c *record.CorruptError
	var i *record.InvalidError
	switch {
	case errors.As(err, &c):
		return c.Detail
	case errors.As(err, &i) && i.Record >= 0:
		return fmt.Sprintf("%s in record %d: %s", i.Reason, i.Record, i.Detail)
	case errors.As(err, &i):
		return fmt.Sprintf("%s: %s", i.Reason, i.Detail)
	}
	return err.Error()
}

// damaged reports a batch, as a torn tail or as a fault, and says where to go on: 0
// for nowhere in this segment.
func (v *verifier) damaged(sc *scanner, f vfs.File, seg *segment, pos int64, h *record.Header, reason string) (int64, error) {
	if h.Length == 0 {
		// Perhaps nothing but the header is wrong.
		n, err := v.wholeLength(f, pos, sc.size, h.CRC)
		if err != nil {
			return 0, err
		}
		h.Length = n
	}
	if seg.sealedAt.Load() == notSealed && v.next >= v.o.DurableBelow {
		valid, err := v.validBehind(sc, pos, h)
		if err != nil {
			return 0, err
		}
		torn, err := v.looksTorn(f, pos, sc.size, h)
		if err != nil {
			return 0, err
		}
		if torn && !valid {
			v.r.TornAt, v.r.TornBytes = pos, sc.size-pos
			v.r.note(seg.logPath, pos, v.next, "a torn tail of %d bytes, which the next start cuts off: %s", sc.size-pos, reason)
			return 0, nil
		}
	}
	v.r.badLog = true
	v.r.fault(seg.logPath, pos, v.next, "%s", reason)
	v.lost = true
	if h.Length == 0 {
		return 0, nil
	}
	return pos + int64(h.Size()), nil
}

// maxResync is how far wholeLength looks.
const maxResync = 16 << 20

// wholeLength looks for the end of a batch whose length field cannot be believed:
// where the checksum is right and the file ends or another batch begins. It returns
// what the length field should say, 0 when nothing is found.
func (v *verifier) wholeLength(f vfs.File, pos, size int64, want uint32) (int32, error) {
	b := make([]byte, min(size-pos, maxResync))
	if n, err := f.ReadAt(b, pos); n < len(b) {
		return 0, errors.Join(err, io.ErrUnexpectedEOF)
	}
	crc := uint32(0)
	for n := record.ChecksumStart; n <= len(b); n++ {
		if n > record.ChecksumStart {
			crc = record.UpdateChecksum(crc, b[n-1:n])
		}
		if n < record.HeaderSize || crc != want {
			continue
		}
		if _, err := parseHeader(b[n:]); err == nil || pos+int64(n) == size {
			return int32(n - record.LengthOverhead), nil
		}
	}
	return 0, nil
}

// validBehind looks for a valid batch behind a damaged one.
func (v *verifier) validBehind(sc *scanner, pos int64, h *record.Header) (bool, error) {
	if h.Length == 0 {
		return false, nil
	}
	for pos += int64(h.Size()); pos < sc.size; {
		next, err := sc.header(pos)
		if err == nil {
			err = sc.verify(pos, &next)
		} else if isBatchFault(err) {
			return false, nil
		}
		if err == nil || !isBatchFault(err) {
			return err == nil, err
		}
		pos += int64(next.Size())
	}
	return false, nil
}

// sector is the smallest piece that a disk writes as a whole.
const sector = 512

// looksTorn tells what a crash leaves of the last writes from damage. A crash leaves
// the beginning of what was written; what follows is missing, or zero from a sector
// on. h has the length of the batch if all of that is there.
func (v *verifier) looksTorn(f vfs.File, pos, size int64, h *record.Header) (bool, error) {
	zeroes, err := zeroTail(f, pos, size)
	if err != nil {
		return false, err
	}
	if zeroes <= pos || (zeroes+sector-1)/sector*sector < size {
		return true, nil
	}
	if h.Length > 0 {
		return false, nil
	}
	var head [record.HeaderSize]byte
	if size-pos < record.HeaderSize {
		return true, nil
	}
	if n, err := f.ReadAt(head[:], pos); n < len(head) {
		return false, err
	}
	whole, err := record.ParseHeader(head[:])
	return err == nil && int64(whole.Size()) > size-pos, nil
}

// zeroTail is where the zeroes at the end of a file begin, not below pos.
func zeroTail(f vfs.File, pos, size int64) (int64, error) {
	buf := make([]byte, 64<<10)
	for size > pos {
		n := min(int64(len(buf)), size-pos)
		if got, err := f.ReadAt(buf[:n], size-n); int64(got) < n {
			return 0, err
		}
		for i := n - 1; i >= 0; i-- {
			if buf[i] != 0 {
				return size - n + i + 1, nil
			}
		}
		size -= n
	}
	return pos, nil
}
