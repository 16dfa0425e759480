package commitlog

import (
	"errors"

	"github.com/leat-io/leat/libs/vfs"
)

// Scan reads every batch in a folder, in order, without changing anything or
// needing to know whose it is; the folder may have any name. fn gets a valid batch
// with its bytes, and a damaged one with Err and without. After damage, reading
// goes on behind the batch if its length can be believed, else with the next
// segment. An error of fn ends the scan and is returned.
func Scan(fsys vfs.FS, dir string, fn func(BatchInfo) error) error {
	bases, err := listSegments(fsys, dir)
	if err != nil {
		return err
	}
	for _, base := range bases {
		if err := scanSegment(newSegment(fsys, dir, base), fn); err != nil {
			return err
		}
	}
	return nil
}

func scanSegment(seg *segment, fn func(BatchInfo) error) (err error) {
	seg.readOnly = true
	f, err := seg.acquire()
	if err != nil {
		return err
	}
	defer func() {
		seg.release()
		err = errors.Join(err, seg.close())
	}()
	sc := newScanner(f, seg.size.Load(), make([]byte, scanBuffer))
	var batch []byte
	for pos := int64(0); pos < sc.size; {
		h, err := sc.header(pos)
		headerOK := err == nil
		if headerOK {
			err = sc.verify(pos, &h)
		}
		if err != nil && !isBatchFault(err) {
			return err
		}
		info := BatchInfo{Path: seg.path(), Position: pos, Header: h, Err: err}
		if err == nil {
			if cap(batch) < h.Size() {
				batch = make([]byte, h.Size())
			}
			info.Batch = batch[:h.Size()]
			if n, err := f.ReadAt(info.Batch, pos); n < h.Size() {
				return err
			}
		}
		if err := fn(info); err != nil {
			return err
		}
		if !headerOK {
			return nil
		}
		pos += int64(h.Size())
	}
	return nil
}
