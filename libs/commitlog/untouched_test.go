package commitlog

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
)

// What Open leaves where it finds no room, wherever that is, is untouched; so is what it
// makes. What was used is not, even when nothing is left in it.
func TestIsUntouched(t *testing.T) {
	check := func(fsys vfs.FS, what string, want bool) {
		t.Helper()
		if got, err := IsUntouched(fsys, testDir); err != nil || got != want {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	check(newFS(t), "an absent folder", true)
	after := 0
	for ; ; after++ {
		disk := newFS(t)
		faulty := errorfs.Wrap(disk)
		faulty.Add(errorfs.Rule{After: after, Err: syscall.ENOSPC, Short: 3})
		l, _, err := Open(testOptions(faulty))
		check(disk, fmt.Sprintf("after %d calls", after), true)
		if err == nil {
			if err := l.Abort(); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if after < 8 {
		t.Errorf("only %d calls failed", after)
	}
	for what, use := range map[string]func(*Log) error{
		"records": func(l *Log) error { return nil },
		"truncated": func(l *Log) error {
			_, err := l.TruncateTo(0)
			return err
		},
		"begun anew": func(l *Log) error { return l.ResetTo(0) },
	} {
		disk := newFS(t)
		l, _ := mustOpen(t, testOptions(disk))
		mustAppend(t, l, batch(t, 1, "a", 1), 0)
		if err := use(l); err != nil {
			t.Fatal(err)
		}
		check(disk, what, false)
	}
	disk := newFS(t)
	l, _ := mustOpen(t, testOptions(disk))
	if err := l.ResetTo(7); err != nil {
		t.Fatal(err)
	}
	check(disk, "begun anew without a record", false)
	faulty := errorfs.Wrap(disk)
	faulty.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpReadDir}, Err: syscall.EIO})
	if got, err := IsUntouched(faulty, testDir); err == nil || got {
		t.Errorf("of a disk that fails: %v, %v", got, err)
	}
}
