package replica

import (
	"fmt"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// A sync that meets a log which is closed because the replica begins anew in another
// folder takes nobody down; one that meets a closed log otherwise does.
func TestAnIOIsOvertakenByANewBeginning(t *testing.T) {
	open := func(dir string) *commitlog.Log {
		log, _, err := commitlog.Open(commitlog.Options{FS: memfs.New(), Dir: dir, Topic: "t", TopicID: [16]byte{1}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := log.Abort(); err != nil {
				t.Error(err)
			}
		})
		return log
	}
	old := open("/old")
	r := &Replica{}
	r.home.Store(&store.Replica{Log: old})
	if err := old.Abort(); err != nil {
		t.Fatal(err)
	}
	_, closed := old.Sync()
	expect := func(when string, err error, want bool) {
		t.Helper()
		if r.overtaken(old, err) != want {
			t.Errorf("%s, with %v: overtaken is %v", when, err, !want)
		}
	}
	expect("while nothing begins anew", closed, false)
	r.resetting = true
	expect("while the replica begins anew", closed, true)
	expect("while the replica begins anew", fmt.Errorf("sync: %w", commitlog.ErrFailed), false)
	r.resetting = false
	r.home.Store(&store.Replica{Log: open("/new")})
	expect("with another log in its place", closed, true)
}
