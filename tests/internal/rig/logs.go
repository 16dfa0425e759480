package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// Log is what a broker has of a partition: the bytes of its segments, one after
// the other. It is empty if the broker has none.
func (r *Rig) Log(broker, topic string, partition int) ([]byte, error) {
	r.t.Helper()
	path := filepath.Join(r.Dir(broker), fmt.Sprintf("%s-%d", topic, partition))
	read := readFolder
	if r.o.ReadFolder != nil {
		read = func(path string) (map[string][]byte, error) { return r.o.ReadFolder(broker, path) }
	}
	var files map[string][]byte
	err := r.onDisk(broker, func() (err error) {
		files, err = read(path)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var log []byte
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".log") {
			log = append(log, files[name]...)
		}
	}
	return log, nil
}

func readFolder(path string) (map[string][]byte, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".log") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(path, e.Name()))
		if err != nil {
			return nil, err
		}
		files[e.Name()] = text
	}
	return files, nil
}

// SameLogs waits until all replicas of a topic to which nobody produces are the
// same byte for byte, and reach as far as the leader's high watermark.
func (r *Rig) SameLogs(topic string, limit time.Duration) {
	r.t.Helper()
	mesh.Eventually(r.t, limit, "all replicas of "+topic+" are byte-identical", func() (bool, string) {
		partitions, err := r.Partitions(topic)
		if err != nil || len(partitions) == 0 {
			return false, fmt.Sprint(err)
		}
		for _, p := range partitions {
			if same, why := r.sameLog(topic, p); !same {
				return false, why
			}
		}
		return true, ""
	})
}

func (r *Rig) sameLog(topic string, p Partition) (bool, string) {
	for _, e := range p.ReplicaEnds {
		if e.End != p.HighWatermark {
			return false, fmt.Sprintf("an end is not at the high watermark: %+v", p)
		}
	}
	if len(p.ReplicaEnds) != len(p.Replicas) {
		return false, fmt.Sprintf("not all replicas are described: %+v", p)
	}
	var first []byte
	for i, id := range p.Replicas {
		log, err := r.Log(brokerName(id), topic, p.Partition)
		if err != nil {
			return false, err.Error()
		}
		if i == 0 {
			first = log
		}
		if !bytes.Equal(log, first) {
			at := 0
			for at < len(log) && at < len(first) && log[at] == first[at] {
				at++
			}
			return false, fmt.Sprintf("partition %d: broker %d has %d bytes, broker %d has %d; they differ from byte %d on: %+v",
				p.Partition, p.Replicas[0], len(first), id, len(log), at, p)
		}
	}
	return true, ""
}
