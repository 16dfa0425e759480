package commitlog

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// lookupBuffer is what a lookup reads at once: about the distance between two
// index entries. scanBuffer is for reading a log from end to end.
const (
	lookupBuffer = 8 << 10
	scanBuffer   = 256 << 10
)

// lookupBuffers saves a lookup its buffer. The contents carry nothing over.
var lookupBuffers = sync.Pool{New: func() any { b := make([]byte, lookupBuffer); return &b }}

// scanner reads batch headers, and checksums, through a buffer of fixed size. No
// length field makes it allocate.
type scanner struct {
	file vfs.File
	size int64 // bytes of the file that count
	buf  []byte
	at   int64 // position of buf[0]
	n    int   // valid bytes of buf
}

func newScanner(f vfs.File, size int64, buf []byte) scanner {
	return scanner{file: f, size: size, buf: buf}
}

// window returns up to want bytes from pos, at least one, all from the buffer. Past
// the end it is io.ErrUnexpectedEOF.
func (s *scanner) window(pos int64, want int) ([]byte, error) {
	want = int(min(int64(min(want, len(s.buf))), s.size-pos))
	if want <= 0 {
		return nil, io.ErrUnexpectedEOF
	}
	if pos < s.at || pos+int64(want) > s.at+int64(s.n) {
		n := int(min(int64(len(s.buf)), s.size-pos))
		got, err := s.file.ReadAt(s.buf[:n], pos)
		if got < want {
			s.n = 0
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		s.at, s.n = pos, got
	}
	i := int(pos - s.at)
	return s.buf[i : i+want], nil
}

// header reads the header of the batch at pos and checks that the file holds the
// rest. Faults are *record.CorruptError and *record.InvalidError; other errors are
// of the disk.
func (s *scanner) header(pos int64) (record.Header, error) {
	b, err := s.window(pos, record.HeaderSize)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return record.Header{}, err
	}
	h, err := parseHeader(b)
	if err != nil {
		return h, err
	}
	if rest := s.size - pos; int64(h.Size()) > rest {
		return h, &record.CorruptError{Position: int(rest), Detail: fmt.Sprintf("the batch has %d bytes and the file ends after %d of them", h.Size(), rest)}
	}
	return h, nil
}

// parseHeader parses a header and checks that its fields make sense together, which
// costs little and keeps whoever walks from one batch to the next from going back.
func parseHeader(b []byte) (record.Header, error) {
	h, err := record.ParseHeader(b)
	if err == nil {
		err = h.Check()
	}
	return h, err
}

// verify checks the checksum of a batch whose header was read at pos.
func (s *scanner) verify(pos int64, h *record.Header) error {
	crc := uint32(0)
	for at := pos + record.ChecksumStart; at < pos+int64(h.Size()); {
		b, err := s.window(at, int(min(int64(len(s.buf)), pos+int64(h.Size())-at)))
		if err != nil {
			return err
		}
		crc = record.UpdateChecksum(crc, b)
		at += int64(len(b))
	}
	if crc != h.CRC {
		return &record.CorruptError{Position: record.ChecksumStart, Detail: fmt.Sprintf("the checksum is %08x and the bytes have %08x", h.CRC, crc)}
	}
	return nil
}

// isBatchFault tells damage of a batch from an error of the disk.
func isBatchFault(err error) bool {
	var c *record.CorruptError
	var i *record.InvalidError
	return errors.As(err, &c) || errors.As(err, &i)
}
