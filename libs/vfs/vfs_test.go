package vfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// each runs a test body over every implementation, in an empty folder.
func each(t *testing.T, body func(t *testing.T, fsys vfs.FS, dir string)) {
	t.Run("os", func(t *testing.T) { body(t, vfs.OS(), t.TempDir()) })
	for name, fsys := range map[string]vfs.FS{"memfs": memfs.New(), "errorfs": errorfs.Wrap(memfs.New())} {
		t.Run(name, func(t *testing.T) {
			if err := fsys.MkdirAll("/a/b"); err != nil {
				t.Fatal(err)
			}
			body(t, fsys, "/a/b")
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFiles(t *testing.T) {
	each(t, func(t *testing.T, fsys vfs.FS, dir string) {
		path := filepath.Join(dir, "f")
		if _, err := fsys.Open(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%v", err)
		}
		if _, err := fsys.OpenRead(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%v", err)
		}
		f, err := fsys.Create(path)
		check(t, err)
		vecs := [][]byte{[]byte("he"), nil, []byte("llo"), {}}
		if n, err := f.WriteVecAt(vecs, 3); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		if string(vecs[0]) != "he" || string(vecs[2]) != "llo" {
			t.Fatal("the vectors were changed")
		}
		if n, err := f.WriteAt([]byte("L"), 5); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := f.WriteVecAt(nil, 0); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		buf := make([]byte, 20)
		if n, err := f.ReadAt(buf, 0); n != 8 || err != io.EOF || string(buf[:8]) != "\x00\x00\x00heLlo" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		if n, err := f.ReadAt(buf, 100); n != 0 || err != io.EOF {
			t.Fatal(n, err)
		}
		check(t, f.Truncate(4))
		check(t, f.Truncate(6))
		if n, err := f.ReadAt(buf, 2); n != 4 || string(buf[:4]) != "\x00h\x00\x00" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		check(t, f.Sync())
		if size, err := f.Size(); size != 6 || err != nil {
			t.Fatal(size, err)
		}
		check(t, f.Close())
		if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, fs.ErrClosed) {
			t.Fatalf("%v", err)
		}
		r, err := fsys.OpenRead(path)
		check(t, err)
		if _, err := r.WriteAt([]byte("x"), 0); err == nil {
			t.Fatal("wrote to a file opened for reading")
		}
		check(t, r.Close())
		w, err := fsys.Open(path)
		check(t, err)
		if n, err := w.WriteAt([]byte("xy"), 5); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		check(t, w.Close())
		info, err := fsys.Stat(path)
		if err != nil || info.Size != 7 || info.IsDir || info.ModTime.IsZero() {
			t.Fatalf("%+v, %v", info, err)
		}
		f, err = fsys.Create(path)
		check(t, err)
		if size, err := f.Size(); size != 0 || err != nil {
			t.Fatal("Create does not empty a file:", size, err)
		}
		check(t, f.Close())
	})
}

// More vectors than one system call takes, and more bytes than come back at once.
func TestManyVectors(t *testing.T) {
	each(t, func(t *testing.T, fsys vfs.FS, dir string) {
		f, err := fsys.Create(filepath.Join(dir, "f"))
		check(t, err)
		var vecs [][]byte
		var want []byte
		for i := range 3000 {
			v := bytes.Repeat([]byte{byte(i)}, i%7)
			vecs = append(vecs, v)
			want = append(want, v...)
		}
		if n, err := f.WriteVecAt(vecs, 0); n != len(want) || err != nil {
			t.Fatal(n, err)
		}
		got := make([]byte, len(want))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Fatal("other bytes came back", err)
		}
		check(t, f.Close())
	})
}

func TestDirectories(t *testing.T) {
	each(t, func(t *testing.T, fsys vfs.FS, dir string) {
		deep := filepath.Join(dir, "x", "y")
		check(t, fsys.MkdirAll(deep))
		check(t, fsys.MkdirAll(deep))
		check(t, vfs.WriteFileAtomic(fsys, filepath.Join(deep, "f"), []byte("one")))
		check(t, vfs.WriteFileAtomic(fsys, filepath.Join(deep, "f"), []byte("two")))
		if b, err := vfs.ReadFile(fsys, filepath.Join(deep, "f"), 3); string(b) != "two" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
		if _, err := vfs.ReadFile(fsys, filepath.Join(deep, "f"), 2); err == nil {
			t.Fatal("a file above the limit was read")
		}
		if err := fsys.Remove(deep); err == nil {
			t.Fatal("a full directory was removed")
		}
		check(t, fsys.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "z")))
		if ok, err := vfs.Exists(fsys, filepath.Join(dir, "x")); ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := vfs.Exists(fsys, filepath.Join(dir, "z", "y", "f")); !ok || err != nil {
			t.Fatal(ok, err)
		}
		check(t, vfs.WriteFileAtomic(fsys, filepath.Join(dir, "a"), nil))
		entries, err := fsys.ReadDir(dir)
		if want := []vfs.DirEntry{{Name: "a"}, {Name: "z", IsDir: true}}; err != nil || !reflect.DeepEqual(entries, want) {
			t.Fatalf("%v, %v", entries, err)
		}
		check(t, fsys.SyncDir(dir))
		check(t, fsys.Remove(filepath.Join(dir, "a")))
		check(t, fsys.RemoveAll(filepath.Join(dir, "z")))
		check(t, fsys.RemoveAll(filepath.Join(dir, "z")))
		if entries, err := fsys.ReadDir(dir); len(entries) != 0 || err != nil {
			t.Fatalf("%v, %v", entries, err)
		}
		for _, err := range []error{
			fsys.Remove(filepath.Join(dir, "a")), fsys.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")),
			fsys.SyncDir(filepath.Join(dir, "a")),
		} {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%v", err)
			}
		}
	})
}

func TestLock(t *testing.T) {
	each(t, func(t *testing.T, fsys vfs.FS, dir string) {
		path := filepath.Join(dir, "lock")
		l, err := fsys.Lock(path)
		check(t, err)
		if _, err := fsys.Lock(path); !errors.Is(err, vfs.ErrLocked) {
			t.Fatalf("%v", err)
		}
		check(t, l.Close())
		l, err = fsys.Lock(path)
		check(t, err)
		check(t, l.Close())
	})
}

// What was not synced is gone after a crash; what was synced is not.
func TestCrash(t *testing.T) {
	m := memfs.New()
	write := func(path, text string, off int64) {
		t.Helper()
		f, err := m.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			f, err = m.Create(path)
		}
		check(t, err)
		_, err = f.WriteAt([]byte(text), off)
		check(t, err)
		check(t, f.Close())
	}
	sync := func(path string) {
		t.Helper()
		f, err := m.Open(path)
		check(t, err)
		check(t, f.Sync())
		check(t, f.Close())
	}
	state := func() string {
		out := ""
		entries, err := m.ReadDir("/d")
		check(t, err)
		for _, e := range entries {
			b, err := vfs.ReadFile(m, "/d/"+e.Name, 100)
			check(t, err)
			out += fmt.Sprintf("%s=%s ", e.Name, b)
		}
		return out
	}
	check(t, m.MkdirAll("/d"))
	check(t, m.SyncDir("/"))
	write("/d/both", "abc", 0)
	sync("/d/both")
	write("/d/name-only", "abc", 0)
	check(t, m.SyncDir("/d"))
	write("/d/bytes-only", "abc", 0)
	sync("/d/bytes-only")
	write("/d/both", "XYZ", 1)
	open, err := m.Open("/d/both")
	check(t, err)
	held, err := m.Lock("/d/lock")
	check(t, err)
	m.Crash(nil)
	if got := state(); got != "both=abc name-only= " {
		t.Fatal(got)
	}
	if _, err := open.ReadAt(make([]byte, 1), 0); !errors.Is(err, memfs.ErrCrashed) {
		t.Fatalf("%v", err)
	}
	again, err := m.Lock("/d/lock")
	check(t, err)
	check(t, held.Close())
	if _, err := m.Lock("/d/lock"); !errors.Is(err, vfs.ErrLocked) {
		t.Fatalf("a dead lock released a live one: %v", err)
	}
	check(t, again.Close())
	check(t, m.Remove("/d/lock"))

	// Removals and renames come back too, unless synced.
	check(t, m.Remove("/d/name-only"))
	check(t, m.Rename("/d/both", "/d/moved"))
	m.Crash(nil)
	if got := state(); got != "both=abc name-only= " {
		t.Fatal(got)
	}
	check(t, m.Rename("/d/both", "/d/moved"))
	check(t, m.SyncDir("/d"))
	m.Crash(nil)
	if got := state(); got != "moved=abc name-only= " {
		t.Fatal(got)
	}
	// A truncation, and a write torn in the middle.
	f, err := m.Open("/d/moved")
	check(t, err)
	check(t, f.Truncate(1))
	m.Crash(nil)
	if got := state(); got != "moved=abc name-only= " {
		t.Fatal(got)
	}
	write("/d/moved", "12345678", 3)
	m.Crash(func() int { return 500 })
	if got := state(); got != "moved=abc1234 name-only= " {
		t.Fatal(got)
	}
	// A name that is lost takes the later ones of its directory along.
	write("/d/first", "1", 0)
	write("/d/second", "2", 0)
	left := []int{0, 1000, 1000, 1000}
	m.Crash(func() int { k := left[0]; left = left[1:]; return k })
	if got := state(); got != "moved=abc1234 name-only= " {
		t.Fatal(got)
	}
	if n := m.OpenFiles(); n != 0 {
		t.Fatalf("%d files are open after a crash", n)
	}
}

func TestRules(t *testing.T) {
	boom := errors.New("boom")
	m := memfs.New()
	e := errorfs.Wrap(m)
	f, err := e.Create("/x.log")
	check(t, err)
	e.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite}, Path: "*.log", After: 1, Times: 2, Err: boom, Short: 2})
	for i, want := range []error{nil, boom, boom, nil} {
		n, err := f.WriteAt([]byte("abc"), int64(10*i))
		if !errors.Is(err, want) || want != nil && n != 2 {
			t.Fatalf("write %d: %d, %v", i, n, err)
		}
	}
	if size, err := f.Size(); size != 33 || err != nil {
		t.Fatal(size, err)
	}
	e.Add(errorfs.Rule{Path: "x.", Err: boom})
	for name, err := range map[string]error{"sync": f.Sync(), "truncate": f.Truncate(0), "remove": e.Remove("/x.log"), "rename": e.Rename("/y", "/x.log")} {
		if !errors.Is(err, boom) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.ReadAt(make([]byte, 3), 0); err != nil {
		t.Fatalf("a rule for changes failed a read: %v", err)
	}
	var seen []errorfs.Op
	e.Clear()
	e.OnCall(func(op errorfs.Op, path string) error { seen = append(seen, op); return nil })
	check(t, f.Sync())
	check(t, e.SyncDir("/"))
	check(t, f.Close())
	if want := []errorfs.Op{errorfs.OpSync, errorfs.OpSyncDir, errorfs.OpClose}; !reflect.DeepEqual(seen, want) {
		t.Fatalf("%v", seen)
	}
	if e.Count(errorfs.OpWrite) != 4 {
		t.Fatalf("%d writes", e.Count(errorfs.OpWrite))
	}
}
