package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
)

// The small files of a disk have the form of those of a replica: text, a head
// line, lines, and a line with the CRC32C of what stands before it:
//
//	leat <kind> <version>
//	<name> <value>
//	…
//	crc32c <8 hex digits>
//
// Each is replaced as a whole, by a synced temporary file and a rename.
const (
	smallFileVersion = 1
	smallFileMax     = 64 << 20 // bytes; 10,000 replicas take under 1 MiB
	crcPrefix        = "crc32c "
)

// Names of the files in a disk's folder.
const (
	lockFile      = ".lock"
	metaFile      = "disk.metadata"
	runningFile   = "running"
	cleanFile     = "clean-shutdown"
	recoveryFile  = "recovery-points"
	watermarkFile = "high-watermarks"
	verdictFile   = "verdicts"
	positionFile  = "metadata-position"
	asideDir      = "quarantine"
)

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// writeSmallFile replaces a file; it is durable when nil is returned.
func writeSmallFile(fsys vfs.FS, dir, kind string, lines []string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "leat %s %d\n", kind, smallFileVersion)
	for _, l := range lines {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s%08x\n", crcPrefix, castagnoli(b.Bytes()))
	return vfs.WriteFileAtomic(fsys, filepath.Join(dir, kind), b.Bytes())
}

// readSmallFile reads the lines of a file; ok is false when there is none.
func readSmallFile(fsys vfs.FS, dir, kind string) (lines []string, ok bool, err error) {
	path := filepath.Join(dir, kind)
	data, err := vfs.ReadFile(fsys, path, smallFileMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	at := bytes.LastIndex(data, []byte(crcPrefix))
	if at < 1 || data[at-1] != '\n' || string(data[at:]) != fmt.Sprintf("%s%08x\n", crcPrefix, castagnoli(data[:at])) {
		return nil, false, &FileError{Path: path, Detail: "the checksum is missing or wrong: the file is damaged; restore it, or remove it if nothing on this disk is needed"}
	}
	lines = strings.Split(strings.TrimSuffix(string(data[:at]), "\n"), "\n")
	number, isKind := strings.CutPrefix(lines[0], "leat "+kind+" ")
	version, err := strconv.Atoi(number)
	if !isKind || err != nil || version < 1 {
		return nil, false, &FileError{Path: path, Detail: fmt.Sprintf("it begins with %q where \"leat %s %d\" belongs", lines[0], kind, smallFileVersion)}
	}
	if version > smallFileVersion {
		return nil, false, &FileError{Path: path, Detail: fmt.Sprintf("it has format version %d and this program reads up to %d; use the release that wrote it, or a newer one", version, smallFileVersion)}
	}
	return lines[1:], true, nil
}

// readFields reads a file of "<name> <value>" lines.
func readFields(fsys vfs.FS, dir, kind string) (map[string]string, bool, error) {
	lines, ok, err := readSmallFile(fsys, dir, kind)
	if err != nil || !ok {
		return nil, ok, err
	}
	fields := make(map[string]string, len(lines))
	for _, l := range lines {
		name, value, _ := strings.Cut(l, " ")
		fields[name] = value
	}
	return fields, true, nil
}

// Key names a replica of one life of a topic.
type Key struct {
	Topic     topicid.ID
	Partition int32
}

func (k Key) String() string { return fmt.Sprintf("%s %d", k.Topic.Hex(), k.Partition) }

// Compare orders keys by topic id, then partition.
func (k Key) Compare(o Key) int {
	if c := k.Topic.Compare(o.Topic); c != 0 {
		return c
	}
	return int(k.Partition) - int(o.Partition)
}

// readKeyed reads a file of "<topic id> <partition> <value>" lines.
func readKeyed[V any](fsys vfs.FS, dir, kind string, parse func(string) (V, error)) (map[Key]V, error) {
	lines, _, err := readSmallFile(fsys, dir, kind)
	if err != nil {
		return nil, err
	}
	values := make(map[Key]V, len(lines))
	for i, l := range lines {
		f := strings.Fields(l)
		bad := func(err error) error {
			return &FileError{Path: filepath.Join(dir, kind), Detail: fmt.Sprintf("line %d is %q: %v", i+2, l, err)}
		}
		if len(f) != 3 {
			return nil, bad(errors.New("three words belong there"))
		}
		id, err := topicid.ParseHex(f[0])
		if err != nil {
			return nil, bad(err)
		}
		partition, err := strconv.ParseInt(f[1], 10, 32)
		if err != nil {
			return nil, bad(err)
		}
		value, err := parse(f[2])
		if err != nil {
			return nil, bad(err)
		}
		values[Key{Topic: id, Partition: int32(partition)}] = value
	}
	return values, nil
}

func parseOffset(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }
