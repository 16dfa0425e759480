package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

const cluster = "AAAAAAAAAAAAAAAAAAAAAA"

func options(fsys vfs.FS, incarnation uint64) Options {
	return Options{FS: fsys, Dirs: []string{"/d1", "/d2"}, BrokerID: 1, Incarnation: incarnation, BootID: "boot"}
}

func key(n int) Key { return Key{Topic: topicid.ID{1, 2, byte(n)}, Partition: int32(n)} }

func batch(t testing.TB) []byte {
	t.Helper()
	b, err := record.NewBuilder(record.DefaultBuilderOptions())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Append(&record.Record{Value: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReplicasGoToTheEmptiestDisk(t *testing.T) {
	s, err := Open(options(memfs.New(), 1))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Create(key(0), "t", commitlog.Config{}); err == nil {
		t.Error("a replica was made before the disks were adopted")
	}
	if err := s.Adopt(cluster, nil); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for n := range 10 {
		r, err := s.Create(key(n), "t", commitlog.Config{})
		if err != nil {
			t.Fatal(err)
		}
		count[r.Disk.Dir]++
	}
	if count["/d1"] != 5 || count["/d2"] != 5 {
		t.Errorf("replicas by disk: %v", count)
	}
	for n := range 5 {
		if err := s.Delete(key(2 * n)); err != nil {
			t.Fatal(err)
		}
	}
	if failed := s.DiskFailed(s.Disks()[0], syscall.EIO); len(failed)+len(s.Replicas()) == 0 {
		t.Error("no replicas are left to look at")
	}
	for n := 20; n < 23; n++ {
		if r, err := s.Create(key(n), "t", commitlog.Config{}); err != nil || r.Disk.Dir != "/d2" {
			t.Errorf("with a failed disk: %v, %v", r, err)
		}
	}
	s.DiskFailed(s.Disks()[1], syscall.EIO)
	if _, err := s.Create(key(30), "t", commitlog.Config{}); !errors.Is(err, ErrDiskOffline) {
		t.Errorf("with no disk left: %v", err)
	}
}

func TestReplicasGoToTheDiskWithFewerBytes(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	full := map[string]bool{}
	fsys.SetSpace(func(path string) (vfs.Space, error) {
		if full[path] {
			return vfs.Space{Total: 1 << 30}, nil
		}
		return vfs.Space{Total: 1 << 30, Free: 1 << 29}, nil
	})
	o := options(fsys, 1)
	o.Space.Reserve = 1 << 20
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Adopt(cluster, nil); err != nil {
		t.Fatal(err)
	}
	create := func(n int) string {
		t.Helper()
		r, err := s.Create(key(n), "t", commitlog.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Disk.Dir
	}
	if a, b := create(0), create(1); a != "/d1" || b != "/d2" {
		t.Fatalf("the first two are on %s and %s", a, b)
	}
	if _, ok := s.Admit(s.Disks()[0], 100<<20, false); !ok {
		t.Fatal("no room on an empty disk")
	}
	for n := 2; n < 5; n++ {
		if dir := create(n); dir != "/d2" {
			t.Errorf("replica %d is on %s, which has 100 MiB more", n, dir)
		}
	}
	full["/d2"] = true
	s.RefreshSpace()
	if dir := create(5); dir != "/d1" {
		t.Errorf("a replica is on %s, which is full", dir)
	}
	full["/d1"] = true
	s.RefreshSpace()
	create(6) // the reserve is for this too
}

func TestSpaceLimits(t *testing.T) {
	for _, tt := range []struct {
		o                       Space
		total                   int64
		reserve, throttle, warn int64
	}{
		{Space{Reserve: -1, Throttle: -1, Warn: -1}, 20 << 20, 1 << 20, 2 << 20, 4 << 20},
		{Space{Reserve: -1, Throttle: -1, Warn: -1}, 1 << 40, 1 << 30, 2 << 30, 4 << 30},
		{Space{Reserve: 100, Throttle: 300, Warn: 200}, 1 << 40, 100, 300, 200},
		{Space{}, 1 << 40, 0, 0, 0},
	} {
		var r room
		tt.o.limits(tt.total, &r)
		if r.reserve.Load() != tt.reserve || r.throttle.Load() != tt.throttle || r.warn.Load() != tt.warn {
			t.Errorf("%+v of %d: %d, %d, %d", tt.o, tt.total, r.reserve.Load(), r.throttle.Load(), r.warn.Load())
		}
	}
}

func TestThrottledDiskSlowsAppendsDown(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	fsys.SetSpace(func(string) (vfs.Space, error) { return vfs.Space{Total: 1 << 30, Free: 150}, nil })
	o := options(fsys, 1)
	now := time.Unix(1000, 0)
	o.Now = func() time.Time { return now }
	o.Space = Space{Reserve: 100, Throttle: 200, Warn: 300, ThrottleRate: 50}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d := s.Disks()[0]
	if d.Stage() != Throttled {
		t.Fatalf("stage %v", d.Stage())
	}
	admit := func(n int64, wantDelay time.Duration, wantOK bool) {
		t.Helper()
		if delay, ok := s.Admit(d, n, false); delay != wantDelay || ok != wantOK {
			t.Errorf("%d bytes: %v, %v, want %v, %v", n, delay, ok, wantDelay, wantOK)
		}
	}
	admit(25, 0, true)
	admit(10, 500*time.Millisecond, true)
	now = now.Add(600 * time.Millisecond)
	admit(15, 100*time.Millisecond, true)
	admit(1, 0, false)
	if _, ok := s.Admit(d, 50, true); !ok {
		t.Error("an internal topic may not use the first half of the reserve")
	}
	if _, ok := s.Admit(d, 1, true); ok {
		t.Error("an internal topic may use the second half of the reserve")
	}
	s.RefreshSpace()
	if d.Stage() != Full {
		t.Errorf("after a refusal the stage is %v", d.Stage())
	}
	now = now.Add(refusedFor)
	s.RefreshSpace()
	if d.Stage() != Throttled {
		t.Errorf("long after it, it is %v", d.Stage())
	}
}

func TestDamagedSmallFilesAreRefused(t *testing.T) {
	for _, name := range []string{metaFile, runningFile, recoveryFile, watermarkFile, positionFile, epochsFile} {
		fsys := memfs.New()
		s, err := Open(options(fsys, 1))
		if err != nil {
			t.Fatal(err)
		}
		s.NoteHistory(History{Position: Position{Generation: 1, Revision: 5}})
		if err := errors.Join(s.Adopt(cluster, nil), s.Close()); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("/d1", name)
		good, err := vfs.ReadFile(fsys, path, 1<<20)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range good {
			bad := append([]byte(nil), good...)
			bad[i] ^= 1
			if err := vfs.WriteFileAtomic(fsys, path, bad); err != nil {
				t.Fatal(err)
			}
			var file *FileError
			if s, err := Open(options(fsys, 2)); !errors.As(err, &file) || !strings.Contains(err.Error(), path) {
				t.Fatalf("%s with bit 0 of byte %d flipped: %v, %v", name, i, s, err)
			}
		}
		newer := []byte(fmt.Sprintf("leat %s 2\n", name))
		newer = append(newer, fmt.Sprintf("%s%08x\n", crcPrefix, castagnoli(newer))...)
		if err := vfs.WriteFileAtomic(fsys, path, newer); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(options(fsys, 2)); err == nil || !strings.Contains(err.Error(), "version 2") {
			t.Errorf("%s of a newer format: %v", name, err)
		}
	}
}

// life runs a broker's disks through a start, appends and a stop, and returns how
// many records were acknowledged. A failure ends it there.
func life(s *Store, b []byte, expected []Key) (acked int64, err error) {
	if err := s.Adopt(cluster, expected); err != nil {
		return 0, err
	}
	r := s.Replica(key(0))
	if r == nil {
		if r, err = s.Create(key(0), "t", commitlog.Config{}); err != nil {
			return 0, err
		}
	}
	if r.Log == nil {
		return 0, r.Disk.Err()
	}
	for range 3 {
		if _, err := r.Log.Append([][]byte{b}, 1); err != nil {
			return acked, err
		}
		end, err := r.Log.Sync()
		if err != nil {
			return acked, err
		}
		acked = end
		r.SetHighWatermark(end)
		for _, err := range s.Checkpoint(true) {
			return acked, err
		}
	}
	return acked, s.Close()
}

// TestPowerCutAtEveryStep stops all writing at each call of two lives in turn,
// loses power, and starts again: what was acknowledged is there, no replica looks
// damaged or missing, and a stop that is believed clean left nothing to recover.
func TestPowerCutAtEveryStep(t *testing.T) {
	b := batch(t)
	steps := 0
	for cut := 0; ; cut++ {
		mem := memfs.New()
		fsys := errorfs.Wrap(mem)
		calls := 0
		fsys.OnCall(func(op errorfs.Op, _ string) error {
			if !op.Changes() {
				return nil
			}
			if calls++; calls > cut {
				return syscall.EIO
			}
			return nil
		})
		acked, done := int64(0), true
		for incarnation := range uint64(2) {
			s, err := Open(options(fsys, incarnation+1))
			if err != nil {
				done = false
				break
			}
			got, err := life(s, b, []Key{key(0)}[:incarnation])
			acked = max(acked, got)
			if err != nil {
				done = false
				if err := s.Abort(); err != nil && !errors.Is(err, syscall.EIO) {
					t.Fatal(err)
				}
				break
			}
		}
		fsys.OnCall(nil)
		mem.Crash(nil)
		s, err := Open(options(mem, 9))
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		var expected []Key
		if acked > 0 {
			expected = []Key{key(0)}
		}
		if err := s.Adopt(cluster, expected); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if v := s.Verdict(key(0)); v != Intact {
			t.Fatalf("cut at %d: verdict %v", cut, v)
		}
		if acked > 0 {
			r := s.Replica(key(0))
			if r == nil || r.Log.EndOffset() < acked {
				t.Fatalf("cut at %d: %d records were acknowledged and the replica is %+v", cut, acked, r)
			}
			if r.Report.Clean && r.Log.EndOffset() != acked {
				t.Fatalf("cut at %d: believed to be a clean stop, with end %d and %d records acknowledged", cut, r.Log.EndOffset(), acked)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if done {
			steps = cut
			break
		}
	}
	if steps < 60 {
		t.Errorf("only %d steps were cut", steps)
	}
	t.Logf("cut at each of %d steps", steps)
}

func TestFolderWithoutIdentityIsSetAside(t *testing.T) {
	fsys := memfs.New()
	if err := fsys.MkdirAll("/d1/empty-0"); err != nil {
		t.Fatal(err)
	}
	if err := fsys.MkdirAll("/d1/strange-0"); err != nil {
		t.Fatal(err)
	}
	f, err := fsys.Create("/d1/strange-0/00000000000000000000.log")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Open(options(fsys, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	aside, err := fsys.ReadDir("/d1/" + asideDir)
	if err != nil || len(aside) != 1 || len(s.Replicas()) != 0 {
		t.Errorf("quarantine %v, %v; replicas %v", aside, err, s.Replicas())
	}
	for _, name := range []string{"empty-0", "strange-0"} {
		if there, _ := vfs.Exists(fsys, "/d1/"+name); there {
			t.Errorf("%s is still there", name)
		}
	}
}

func TestDirs(t *testing.T) {
	for _, dirs := range [][]string{nil, {""}, {"/a", "/a/"}} {
		o := options(memfs.New(), 1)
		o.Dirs = dirs
		if _, err := Open(o); err == nil {
			t.Errorf("log.dirs %q is taken", dirs)
		}
	}
}
