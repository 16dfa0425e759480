package replication

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// digests is what `leat topic digest -o json` prints.
type digests struct {
	Partitions []struct {
		Partition     int   `json:"partition"`
		HighWatermark int64 `json:"high_watermark"`
		Replicas      []struct {
			Broker int     `json:"broker"`
			Digest *string `json:"digest"`
		} `json:"replicas"`
	} `json:"partitions"`
}

// sameDigests demands that all replicas of the topic have the same records.
func (l *load) sameDigests() {
	l.t.Helper()
	mesh.Eventually(l.t, 2*time.Minute, "all replicas have the same digest", func() (bool, string) {
		res := l.r.Leat("topic", "digest", l.topic, "--timeout", "20s", "-o", "json")
		var d digests
		if err := json.Unmarshal([]byte(res.Stdout), &d); err != nil || len(d.Partitions) == 0 {
			return false, fmt.Sprint(err, res)
		}
		for _, p := range d.Partitions {
			for _, r := range p.Replicas {
				if len(p.Replicas) != 3 || r.Digest == nil || p.Replicas[0].Digest == nil || *r.Digest != *p.Replicas[0].Digest {
					return false, res.Stdout
				}
			}
		}
		return true, ""
	})
}
