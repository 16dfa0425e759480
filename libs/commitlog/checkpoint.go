package commitlog

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// The small files of a replica are text, so that a person can read them, and end
// in a line with the CRC32C of what stands before it:
//
//	leat <kind> <version>
//	<name> <value>
//	…
//	crc32c <8 hex digits>
const (
	maxSmallFile = 16 << 20
	crcLine      = "crc32c "
)

// encodeSmallFile renders the lines under a head line, with the checksum.
func encodeSmallFile(kind string, version int, lines []string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "leat %s %d\n", kind, version)
	for _, l := range lines {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	crc := record.UpdateChecksum(0, b.Bytes())
	fmt.Fprintf(&b, "%s%08x\n", crcLine, crc)
	return b.Bytes()
}

// readSmallFile reads a file that encodeSmallFile rendered. Damage is a
// *CorruptError, a newer version an *UnsupportedVersionError.
func readSmallFile(fsys vfs.FS, path, kind string, version int) ([]string, error) {
	return readSmallFileMax(fsys, path, kind, version, maxSmallFile)
}

func readSmallFileMax(fsys vfs.FS, path, kind string, version int, limit int64) ([]string, error) {
	data, err := vfs.ReadFile(fsys, path, limit)
	if err != nil {
		return nil, err
	}
	return decodeSmallFile(path, data, kind, version)
}

// decodeSmallFile gives the lines of a small file's bytes; path is for errors.
func decodeSmallFile(path string, data []byte, kind string, version int) ([]string, error) {
	bad := func(detail string) ([]string, error) {
		return nil, &CorruptError{Path: path, Offset: -1, Detail: detail}
	}
	body, tail, found := bytes.Cut(data, []byte("\n"+crcLine))
	if !found {
		return bad("the line with the checksum is missing")
	}
	body = data[:len(body)+1]
	if string(tail) != fmt.Sprintf("%08x\n", record.UpdateChecksum(0, body)) {
		return bad("the checksum does not match")
	}
	lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	number, isKind := strings.CutPrefix(lines[0], "leat "+kind+" ")
	v, err := strconv.Atoi(number)
	if !isKind || err != nil || v < 1 {
		return bad(fmt.Sprintf("the first line is %q where \"leat %s %d\" belongs", lines[0], kind, version))
	}
	if v > version {
		return nil, &UnsupportedVersionError{Path: path, Version: v, Max: version}
	}
	return lines[1:], nil
}

// metadataFile names the file that says whose folder this is.
const (
	metadataFile    = "partition.metadata"
	metadataKind    = "partition.metadata"
	metadataVersion = 1
)

// Metadata is what a replica's folder says about itself.
type Metadata struct {
	Topic     string
	Partition int32
	TopicID   [16]byte
}

// ReadMetadata reads a replica folder's partition.metadata. It fails with
// fs.ErrNotExist when there is none, a *CorruptError when it is damaged and an
// *UnsupportedVersionError when a newer release wrote it.
func ReadMetadata(fsys vfs.FS, dir string) (Metadata, error) {
	path := joinPath(dir, metadataFile)
	lines, err := readSmallFile(fsys, path, metadataKind, metadataVersion)
	if err != nil {
		return Metadata{}, err
	}
	var m Metadata
	seen := 0
	for _, line := range lines {
		name, value, _ := strings.Cut(line, " ")
		switch name {
		case "topic":
			m.Topic, seen = value, seen|1
		case "partition":
			n, err := strconv.ParseInt(value, 10, 32)
			if err == nil && n >= 0 {
				m.Partition, seen = int32(n), seen|2
			}
		case "topic_id":
			if n, err := hex.Decode(m.TopicID[:], []byte(value)); err == nil && n == len(m.TopicID) && len(value) == 2*n {
				seen |= 4
			}
		}
	}
	if seen != 7 {
		return Metadata{}, &CorruptError{Path: path, Offset: -1, Detail: "topic, partition and topic_id are not all there"}
	}
	return m, nil
}

func writeMetadata(fsys vfs.FS, dir string, m Metadata) error {
	return vfs.WriteFileAtomic(fsys, joinPath(dir, metadataFile), encodeSmallFile(metadataKind, metadataVersion, []string{
		"topic " + m.Topic, fmt.Sprintf("partition %d", m.Partition), fmt.Sprintf("topic_id %x", m.TopicID),
	}))
}
