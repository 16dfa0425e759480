package commitlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// cleanWorkload appends a history of a few keys over several segments, with
// tombstones and an idempotent producer whose batches are all superseded.
func cleanWorkload(t *testing.T, c *cleanLog) {
	t.Helper()
	appendWorkload(t, c, workloadBatches(t, c.clock.now.UnixMilli()))
}

// workloadBatches are those of cleanWorkload, in order, with their leader epochs.
func workloadBatches(t *testing.T, now int64) (out []epochBatch) {
	t.Helper()
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch = 7, 1
	pad := strings.Repeat("p", 6000)
	for i := range 30 {
		o.BaseSequence = int32(i) * 2
		if i < 20 {
			out = append(out, epochBatch{int32(i / 7), buildKV(t, now, o, kv{key: fmt.Sprintf("p%d", i%3), value: fmt.Sprint(i) + pad}, kv{key: "idem", value: pad})})
		}
		c2 := record.DefaultBuilderOptions()
		c2.Compression = record.Compression(i % 5)
		out = append(out, epochBatch{int32(i / 7), buildKV(t, now, c2, kv{key: fmt.Sprintf("p%d", i%4), value: fmt.Sprint(i) + pad},
			kv{key: "idem", value: fmt.Sprint(i)}, kv{key: fmt.Sprintf("t%d", i%2), tombstone: true})})
	}
	return out
}

type epochBatch struct {
	epoch int32
	data  []byte
}

func appendWorkload(t *testing.T, c *cleanLog, batches []epochBatch) {
	t.Helper()
	for _, b := range batches {
		mustAppend(t, c.Log, b.data, b.epoch)
	}
	c.roll()
	mustSync(t, c.Log)
}

// survivors is what a complete cleaning leaves of a log, filler included.
func survivors(t *testing.T, c *cleanLog) []string {
	t.Helper()
	var out []string
	for _, r := range readAll(t, c.Log, c.StartOffset(), 1<<40) {
		out = append(out, fmt.Sprintf("%d:%s=%d:%.8s", r.Offset, r.Key, len(r.Value), r.Value))
	}
	return out
}

func lastSequence(t *testing.T, disk *memfs.FS) int32 {
	t.Helper()
	last := int32(-1)
	for _, h := range batches(t, disk) {
		if h.ProducerID == 7 {
			last = max(last, h.LastSequence())
		}
	}
	return last
}

// case 13: power is cut, or the process killed, at every I/O step of a compaction:
// each survivor is there exactly once, the producer's sequence is known, and the
// next cleaning finishes the job.
func TestCrashAtEveryStepOfClean(t *testing.T) {
	for name, cleanedBefore := range map[string]bool{"segment by segment": false, "joining small segments": true} {
		t.Run(name, func(t *testing.T) { crashWhileCleaning(t, cleanedBefore) })
	}
}

func crashWhileCleaning(t *testing.T, cleanedBefore bool) {
	crashes, workload := 0, workloadBatches(t, newClock().now.UnixMilli())
	for name, keeper := range keepers() {
		for step := 0; ; step++ {
			disk := newFS(t)
			faulty := errorfs.Wrap(disk)
			c := newCleanLog(t, faulty)
			appendWorkload(t, c, workload)
			tombstones := int64(2)
			if cleanedBefore {
				// What is left of the segments is small, and they will be joined.
				c.clean(cleanOptions(c.DurableEnd()))
				c.put(kv{key: "p1", value: "late"}, kv{key: "t0", value: "back"})
				c.roll()
				tombstones = 1
			}
			segments := c.Segments()
			before := survivors(t, c)
			end := c.DurableEnd()
			o := cleanOptions(end)
			powerCut(faulty, step)
			_, err := c.Clean(o)
			where := fmt.Sprintf("%s, cut at step %d", name, step)
			if err == nil {
				if cleanedBefore != (c.Segments() < segments) {
					t.Fatalf("%d segments became %d", segments, c.Segments())
				}
				break
			}
			if !errors.Is(err, errPower) {
				t.Fatalf("%s: %v", where, err)
			}
			crashes++
			if err := c.Abort(); err != nil && !errors.Is(err, errPower) {
				t.Fatalf("%s: %v", where, err)
			}
			disk.Crash(keeper(step))
			after := newCleanLog(t, disk)
			after.opts.RecoveryPoint, after.opts.HighWatermark = end, end
			after.reopen(false)
			checkSurvivors(t, after, before, where)
			if got := lastSequence(t, disk); got != 39 {
				t.Fatalf("%s: the producer's last sequence is %d", where, got)
			}
			after.clean(o)
			if got, want := survivors(t, after), cleaned(before, after.active().base); !slices.Equal(got, want) {
				t.Fatalf("%s: after the next cleaning the log holds\n%q, want\n%q", where, got, want)
			}
			// And tombstones go at their time.
			after.clock.now = after.clock.now.Add(2 * time.Hour)
			if r := after.clean(o); r.Tombstones != tombstones {
				t.Fatalf("%s: %+v", where, r)
			}
			if err := after.Abort(); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d crashes", crashes)
	if crashes < 100 {
		t.Fatalf("only %d crash points were met", crashes)
	}
}

// cleaned is what of a log's records a cleaning up to an offset leaves.
func cleaned(before []string, limit int64) []string {
	newest := map[string]int{}
	for i, r := range before {
		var offset int64
		var key string
		if _, err := fmt.Sscanf(strings.Replace(r, "=", " ", 1), "%d:%s", &offset, &key); err == nil && offset < limit {
			newest[key] = i
		}
	}
	var out []string
	for i, r := range before {
		var offset int64
		var key string
		_, err := fmt.Sscanf(strings.Replace(r, "=", " ", 1), "%d:%s", &offset, &key)
		if err != nil || offset >= limit || newest[key] == i {
			out = append(out, r)
		}
	}
	return out
}

// checkSurvivors wants what a cleaning leaves, and perhaps some of what it had not
// come to, each record once and in order.
func checkSurvivors(t *testing.T, c *cleanLog, before []string, where string) {
	t.Helper()
	got := survivors(t, c)
	must := cleaned(before, c.active().base)
	for _, r := range got {
		i := slices.Index(before, r)
		if i < 0 {
			t.Fatalf("%s: %s is there twice, out of order, or was never appended", where, r)
		}
		before = before[i+1:]
		if len(must) > 0 && must[0] == r {
			must = must[1:]
		}
	}
	if len(must) > 0 {
		t.Fatalf("%s: %s is gone", where, must[0])
	}
}
