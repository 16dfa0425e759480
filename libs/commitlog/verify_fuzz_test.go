package commitlog

import (
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
)

// FuzzVerify gives Verify a folder whose files hold anything: it neither panics nor
// fails; after a repair no index is at fault and no .log was touched; and what
// recovery leaves of the folder is without fault, so that the two agree.
func FuzzVerify(f *testing.F) {
	good := verifiable(f)
	var files [6][]byte
	names := [6]string{
		segmentPath(testDir, 10, logSuffix), segmentPath(testDir, 10, indexSuffix), segmentPath(testDir, 10, timeIndexSuffix),
		joinPath(testDir, epochFile), joinPath(testDir, marksFile), segmentPath(testDir, 10, snapshotSuffix),
	}
	last := lastBase(f, good)
	for i, suffix := range []string{logSuffix, indexSuffix, timeIndexSuffix} {
		var err error
		if files[i], err = vfs.ReadFile(good, segmentPath(testDir, last, suffix), 1<<20); err != nil {
			f.Fatal(err)
		}
		names[i] = segmentPath(testDir, last, suffix)
	}
	files[3] = encodeSmallFile(epochKind, epochVersion, []string{"2 11", "3 14"})
	files[4] = encodeSmallFile(marksKind, marksVersion, []string{"start 11", "gaps_below 14"})
	files[5] = encodeSmallFile(snapshotKind, snapshotVersion, []string{"offset 16", "fence 0 0"})
	f.Add(files[0], files[1], files[2], files[3], files[4], files[5])
	f.Add(files[0][:300], files[1][:7], []byte{}, files[3], []byte{}, []byte("leat"))
	f.Add(append(files[0][:300:300], make([]byte, 700)...), files[2], files[1], []byte{}, files[4], []byte{})
	f.Fuzz(func(t *testing.T, log, index, times, epochs, marks, snapshot []byte) {
		disk := memfs.New()
		if err := disk.MkdirAll(testDir); err != nil {
			t.Fatal(err)
		}
		if err := writeMetadata(disk, testDir, Metadata{Topic: "orders", TopicID: testID}); err != nil {
			t.Fatal(err)
		}
		for i, b := range [6][]byte{log, index, times, epochs, marks, snapshot} {
			if i >= 4 && len(b) == 0 {
				continue
			}
			if err := vfs.WriteFileAtomic(disk, names[i], b); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := RepairIndexes(disk, testDir, VerifyOptions{}); err != nil {
			t.Fatalf("repair: %v", err)
		}
		if got, err := vfs.ReadFile(disk, names[0], 1<<20); err != nil || string(got) != string(log) {
			t.Fatalf("the .log was changed: %v", err)
		}
		r, err := Verify(disk, testDir, VerifyOptions{})
		if err != nil {
			t.Fatalf("verify: %v", err)
		}
		for _, fault := range r.Faults {
			if strings.HasSuffix(fault.Path, "index") {
				t.Fatalf("after the repair: %s", fault.String())
			}
		}
		l, report, err := Open(testOptions(disk))
		if err != nil {
			return
		}
		if err := l.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
		// Recovery does not look inside records.
		if r, err = Verify(disk, testDir, VerifyOptions{SkipRecords: true}); err != nil || !r.OK() || r.End != report.End {
			t.Fatalf("recovery left faults, at %d: %+v, %v", report.End, r, err)
		}
	})
}
