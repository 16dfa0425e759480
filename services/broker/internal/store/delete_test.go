package store

import (
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// A topic that was made again under its name may have its folder where a deletion of the
// earlier topic's, which failed half-way, is tried again.
func TestADeletionTriedAgainLeavesTheNewTopicAlone(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	o := options(fsys, 1)
	o.Dirs = o.Dirs[:1]
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Adopt(cluster, nil); err != nil {
		t.Fatal(err)
	}
	earlier, later := key(0), key(0)
	later.Topic[0]++
	if _, err := s.Create(earlier, "t", commitlog.Config{}); err != nil {
		t.Fatal(err)
	}
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpRemoveAll}, After: 1, Times: 1, Err: syscall.ENOTEMPTY})
	if err := s.Delete(earlier); err == nil {
		t.Fatal("the fault went unnoticed")
	}
	r, err := s.Create(later, "t", commitlog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, r, 3)
	if err := s.Delete(earlier); err != nil || s.Replica(earlier) != nil {
		t.Fatalf("tried again: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.Incarnation++
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r := s.Replica(later); r == nil || r.Log == nil || r.Log.EndOffset() != 3 {
		t.Errorf("the new topic's replica after a start: %+v", r)
	}
}
