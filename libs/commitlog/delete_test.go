package commitlog

import (
	"syscall"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
)

// A deletion that failed after the folder had lost its name is tried again when a topic
// of the same name may have its own folder there.
func TestDeletionsTriedAgainLeaveASuccessorAlone(t *testing.T) {
	for name, again := range map[string]func(vfs.FS, *Log) error{
		"the log":    func(_ vfs.FS, l *Log) error { return l.Delete() },
		"the folder": func(fsys vfs.FS, l *Log) error { return DeleteFolder(fsys, testDir, l.id) },
	} {
		fsys := newFS(t)
		faulty := errorfs.Wrap(fsys)
		l, _ := mustOpen(t, testOptions(faulty))
		mustAppend(t, l, batch(t, 1, "a", 1), 0)
		faulty.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpRemoveAll}, After: 1, Times: 1, Err: syscall.ENOTEMPTY})
		if err := l.Delete(); err == nil {
			t.Fatalf("%s: the fault went unnoticed", name)
		}
		// Its successor is just being made, and nothing in it says whose it is.
		if err := fsys.MkdirAll(testDir); err != nil {
			t.Fatal(err)
		}
		if err := again(faulty, l); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if there, err := vfs.Exists(fsys, testDir); err != nil || !there {
			t.Fatalf("%s: the folder of a log that is being made is gone: %v", name, err)
		}
		o := testOptions(fsys)
		o.TopicID = [16]byte{9}
		next, _ := mustOpen(t, o)
		if err := again(faulty, l); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if m, err := ReadMetadata(fsys, testDir); err != nil || m.TopicID != o.TopicID {
			t.Fatalf("%s: the folder of the successor: %+v, %v", name, m, err)
		}
		if err := next.Delete(); err != nil {
			t.Fatal(err)
		}
		fsys.Crash(nil)
		if entries, err := fsys.ReadDir("/disk"); err != nil || len(entries) != 0 {
			t.Fatalf("%s: left over: %v, %v", name, entries, err)
		}
	}
}

// What says no longer whose it is goes all the same.
func TestDeleteFolderWithADamagedIdentity(t *testing.T) {
	for _, damage := range []func([]byte) []byte{
		nil,
		func(b []byte) []byte { b[0] ^= 1; return b },
		func([]byte) []byte { return encodeSmallFile(metadataKind, metadataVersion+1, nil) },
	} {
		fsys := newFS(t)
		l, _ := mustOpen(t, testOptions(fsys))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if path := joinPath(testDir, metadataFile); damage != nil {
			overwrite(t, fsys, path, damage)
		} else if err := fsys.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := DeleteFolder(fsys, testDir, l.id); err != nil {
			t.Fatal(err)
		}
		if there, err := vfs.Exists(fsys, testDir); err != nil || there {
			t.Fatalf("the folder is still there: %v", err)
		}
	}
}
