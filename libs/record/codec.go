package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// The pools hold codec state that is costly to make and carries nothing from one
// use to the next; sharing them between callers cannot be observed. They are the
// only variables of the package that change.
var (
	gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}
	gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}
	lz4Writers  = sync.Pool{New: newLZ4Writer}
	lz4Readers  = sync.Pool{New: newLZ4Reader}
	zstdWriters = sync.Pool{New: newZstdWriter}
	zstdReaders = sync.Pool{New: newZstdReader}
)

// zstdMaxWindow bounds the memory a zstd frame may ask for. It covers every level
// up to 19.
const zstdMaxWindow = 8 << 20

func newLZ4Writer() any {
	w := lz4.NewWriter(io.Discard)
	// Kafka's own clients write 64 KiB blocks. One goroutine: batches are small.
	if err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false), lz4.ConcurrencyOption(1)); err != nil {
		return err
	}
	return w
}

func newLZ4Reader() any {
	r := lz4.NewReader(nil)
	if err := r.Apply(lz4.ConcurrencyOption(1)); err != nil {
		return err
	}
	return r
}

func newZstdWriter() any {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	if err != nil {
		return err
	}
	return w
}

func newZstdReader() any {
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(zstdMaxWindow))
	if err != nil {
		return err
	}
	return r
}

// take gets codec state from a pool, or the error of making it.
func take[T any](p *sync.Pool) (T, error) {
	switch v := p.Get().(type) {
	case T:
		return v, nil
	case error:
		var zero T
		return zero, v
	}
	var zero T
	return zero, errors.New("codec pool holds a foreign value")
}

// compress appends the packed form of src to dst.
func compress(dst []byte, c Compression, src []byte) ([]byte, error) {
	switch c {
	case CompressionGzip:
		w, err := take[*gzip.Writer](&gzipWriters)
		if err != nil {
			return nil, err
		}
		defer gzipWriters.Put(w)
		out := appender{dst}
		w.Reset(&out)
		return finish(w, &out, src)
	case CompressionSnappy:
		return compressSnappy(dst, src), nil
	case CompressionLZ4:
		w, err := take[*lz4.Writer](&lz4Writers)
		if err != nil {
			return nil, err
		}
		defer lz4Writers.Put(w)
		out := appender{dst}
		w.Reset(&out)
		return finish(w, &out, src)
	case CompressionZstd:
		w, err := take[*zstd.Encoder](&zstdWriters)
		if err != nil {
			return nil, err
		}
		defer zstdWriters.Put(w)
		return w.EncodeAll(src, dst), nil
	}
	return append(dst, src...), nil
}

func finish(w io.WriteCloser, out *appender, src []byte) ([]byte, error) {
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.b, nil
}

type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

// decompress appends the unpacked form of src to dst, whose length is 0, and
// gives up at limit bytes.
func decompress(dst []byte, c Compression, src []byte, limit int) ([]byte, error) {
	switch c {
	case CompressionGzip:
		r, err := take[*gzip.Reader](&gzipReaders)
		if err != nil {
			return dst, err
		}
		defer gzipReaders.Put(r)
		if err := r.Reset(bytes.NewReader(src)); err != nil {
			return dst, badPayload(c, err)
		}
		return readCapped(dst, c, r, len(src), limit)
	case CompressionSnappy:
		return decompressSnappy(dst, src, limit)
	case CompressionLZ4:
		r, err := take[*lz4.Reader](&lz4Readers)
		if err != nil {
			return dst, err
		}
		defer lz4Readers.Put(r)
		r.Reset(bytes.NewReader(src))
		return readCapped(dst, c, r, len(src), limit)
	case CompressionZstd:
		r, err := take[*zstd.Decoder](&zstdReaders)
		if err != nil {
			return dst, err
		}
		defer zstdReaders.Put(r)
		if err := r.Reset(bytes.NewReader(src)); err != nil {
			return dst, badPayload(c, err)
		}
		return readCapped(dst, c, r, len(src), limit)
	}
	return dst, invalid(ReasonUnsupportedCompression, posAttributes, "codec number %d is not assigned", c)
}

// readCapped reads r to its end. The buffer grows with what really comes, not
// with what a header promises.
func readCapped(dst []byte, c Compression, r io.Reader, packed, limit int) ([]byte, error) {
	if want := min(4*packed+512, limit+1); cap(dst) < want {
		dst = make([]byte, 0, want)
	}
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if len(dst) > limit {
			return dst, tooLargeDecoded(c, limit)
		}
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, badPayload(c, err)
		}
	}
}

func badPayload(c Compression, err error) error {
	return invalid(ReasonBadCompression, HeaderSize, "%s: %v", c, err)
}

func tooLargeDecoded(c Compression, limit int) error {
	return invalid(ReasonDecodedTooLarge, HeaderSize, "%s payload unpacks to more than the %d bytes that max.decoded.bytes allows", c, limit)
}

// Kafka's Java clients frame snappy as the xerial library does: a header of 16
// bytes (magic, version 1, compatible version 1), then blocks of a 4-byte big
// endian length and that many bytes of plain snappy. Others send one plain block.
const (
	xerialHeaderSize = 16
	xerialBlock      = 32 << 10
	xerialMagic      = "\x82SNAPPY\x00"
)

func compressSnappy(dst, src []byte) []byte {
	dst = append(dst, xerialMagic...)
	dst = append(dst, 0, 0, 0, 1, 0, 0, 0, 1)
	for len(src) > 0 {
		block := src[:min(len(src), xerialBlock)]
		src = src[len(block):]
		at := len(dst)
		dst = append(dst, make([]byte, 4+s2.MaxEncodedLen(len(block)))...)
		packed := s2.EncodeSnappy(dst[at+4:], block)
		binary.BigEndian.PutUint32(dst[at:], uint32(len(packed)))
		dst = dst[:at+4+len(packed)]
	}
	return dst
}

func decompressSnappy(dst, src []byte, limit int) ([]byte, error) {
	if !bytes.HasPrefix(src, []byte(xerialMagic)) || len(src) < xerialHeaderSize {
		return snappyBlock(dst, src, limit)
	}
	src = src[xerialHeaderSize:]
	for len(src) > 0 {
		if len(src) < 4 {
			return dst, badPayload(CompressionSnappy, io.ErrUnexpectedEOF)
		}
		size := binary.BigEndian.Uint32(src)
		if uint64(size) > uint64(len(src)-4) {
			return dst, badPayload(CompressionSnappy, io.ErrUnexpectedEOF)
		}
		var err error
		if dst, err = snappyBlock(dst, src[4:4+size], limit); err != nil {
			return dst, err
		}
		src = src[4+size:]
	}
	return dst, nil
}

// snappyBlock appends one plain block. The block says how long it will be; the
// best that snappy can do is 64 bytes for 3, so a larger promise is a lie and
// allocates nothing.
func snappyBlock(dst, block []byte, limit int) ([]byte, error) {
	n, err := s2.DecodedLen(block)
	if err != nil {
		return dst, badPayload(CompressionSnappy, err)
	}
	if n > limit-len(dst) {
		return dst, tooLargeDecoded(CompressionSnappy, limit)
	}
	if n > 22*len(block) {
		return dst, badPayload(CompressionSnappy, s2.ErrCorrupt)
	}
	at := len(dst)
	dst = append(dst, make([]byte, n)...)
	if _, err := s2.Decode(dst[at:], block); err != nil {
		return dst, badPayload(CompressionSnappy, err)
	}
	return dst, nil
}
