package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
)

// However a leader's batches are cut into runs, the files are the same as if they had
// come one by one: over leader epochs, gaps and new segments.
func TestAppendRunIsAppendAt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var all [][]byte
	next, epoch := int64(0), int32(0)
	for i := range 400 {
		if random.IntN(40) == 0 {
			epoch++
		}
		if random.IntN(40) == 0 {
			next += random.Int64N(1000)
		}
		n := random.IntN(5) + 1
		all = append(all, at(batch(t, n, strings.Repeat("v", random.IntN(200)), int64(i*10)), next, epoch))
		next += int64(n)
	}
	one, _ := mustOpen(t, testOptions(newFS(t)))
	for _, b := range all {
		mustAppendAt(t, one, b)
	}
	runs, _ := mustOpen(t, testOptions(newFS(t)))
	for rest := all; len(rest) > 0; {
		n := min(random.IntN(60)+1, len(rest))
		var run [][][]byte
		for _, b := range rest[:n] {
			cut := random.IntN(len(b))
			run = append(run, [][]byte{b[:cut], b[cut:]})
		}
		if taken, err := runs.AppendRun(run); err != nil || taken != n {
			t.Fatalf("took %d of %d: %v", taken, n, err)
		}
		rest = rest[n:]
	}
	if one.Segments() < 3 || one.Segments() != runs.Segments() || one.EndOffset() != runs.EndOffset() {
		t.Errorf("%d segments up to %d, and %d up to %d", one.Segments(), one.EndOffset(), runs.Segments(), runs.EndOffset())
	}
	if !reflect.DeepEqual(one.Epochs(), runs.Epochs()) {
		t.Errorf("epochs %v and %v", one.Epochs(), runs.Epochs())
	}
	if err := errors.Join(one.Close(), runs.Close()); err != nil {
		t.Fatal(err)
	}
	entries, err := one.fs.ReadDir(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := testDir + "/" + e.Name
		a, err := vfs.ReadFile(one.fs, path, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		b, err := vfs.ReadFile(runs.fs, path, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs: %d and %d bytes", e.Name, len(a), len(b))
		}
	}
}

// What is wrong with a batch of a run stops the run there, and what came before it
// stays.
func TestAppendRunStopsAtAFault(t *testing.T) {
	l, _ := mustOpen(t, testOptions(newFS(t)))
	mustAppendAt(t, l, at(batch(t, 1, "a", 1), 0, 3))
	run := [][][]byte{{at(batch(t, 1, "b", 1), 1, 3)}, {at(batch(t, 1, "c", 1), 2, 3)}, {at(batch(t, 1, "d", 1), 3, 2)}, {at(batch(t, 1, "e", 1), 4, 3)}}
	var stale *StaleEpochError
	if taken, err := l.AppendRun(run); taken != 2 || !errors.As(err, &stale) || l.EndOffset() != 3 {
		t.Errorf("took %d up to %d: %v", taken, l.EndOffset(), err)
	}
	var order *OutOfOrderError
	if taken, err := l.AppendRun([][][]byte{{at(batch(t, 1, "b", 1), 1, 3)}, {at(batch(t, 1, "d", 1), 3, 3)}}); taken != 0 || !errors.As(err, &order) {
		t.Errorf("took %d: %v", taken, err)
	}
}

// A run for which there is no room leaves the log as it was.
func TestAppendRunWithoutRoom(t *testing.T) {
	fsys := errorfs.Wrap(newFS(t))
	l, _ := mustOpen(t, testOptions(fsys))
	mustAppendAt(t, l, at(batch(t, 1, "a", 1), 0, 0))
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite}, Path: ".log", Short: 100, Err: syscall.ENOSPC})
	run := [][][]byte{}
	for i := range int64(5) {
		run = append(run, [][]byte{at(batch(t, 1, fmt.Sprint("b", i), 1), 1+i, 0)})
	}
	var full *NoSpaceError
	if taken, err := l.AppendRun(run); taken != 0 || !errors.As(err, &full) || l.EndOffset() != 1 {
		t.Errorf("took %d up to %d: %v", taken, l.EndOffset(), err)
	}
	fsys.Clear()
	if taken, err := l.AppendRun(run); taken != 5 || err != nil {
		t.Errorf("took %d: %v", taken, err)
	}
	if got := len(readAll(t, l, 0, l.EndOffset())); got != 6 {
		t.Errorf("%d records", got)
	}
}
