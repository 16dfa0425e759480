package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// replicaFolder makes a log of ten batches and closes it.
func replicaFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "orders-0")
	l, _, err := commitlog.Open(commitlog.Options{Dir: dir, Topic: "orders", TopicID: [16]byte{7}, Config: commitlog.Config{IndexIntervalBytes: 100}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := record.NewBuilder(record.DefaultBuilderOptions())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if ok, err := b.Append(&record.Record{Key: []byte("k"), Value: fmt.Appendf(nil, "value %d", i)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append([][]byte{batch}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// logVerify runs leat log verify and decodes what it prints of each folder.
func logVerify(t *testing.T, args ...string) (code int, found []output.Verification, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(context.Background(), append([]string{"log", "verify", "-o", "json"}, args...), IO{In: strings.NewReader(""), Out: &out, Err: &errs})
	for d := json.NewDecoder(&out); d.More(); {
		var v output.Verification
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
		found = append(found, v)
	}
	return code, found, errs.String()
}

func TestLogVerify(t *testing.T) {
	dir := replicaFolder(t)
	copied := filepath.Join(t.TempDir(), "any name")
	if err := os.Rename(dir, copied); err != nil {
		t.Fatal(err)
	}
	dir = copied
	code, found, _ := logVerify(t, filepath.Dir(dir))
	if v := found[0]; code != exit.OK || len(found) != 1 || !v.OK || v.End != 10 || v.Records != 10 || v.Topic != "orders" || len(v.Notes) != 0 || v.IndexEntries == 0 {
		t.Fatalf("%d, %+v", code, found)
	}
	log := filepath.Join(dir, "00000000000000000000.log")
	whole, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A torn tail is no fault.
	write(log, whole[:len(whole)-3])
	if code, found, _ = logVerify(t, dir); code != exit.OK || !found[0].OK || found[0].TornBytes == 0 || found[0].End != 9 {
		t.Fatalf("%d, %+v", code, found)
	}
	// A flipped bit is, and its place is told.
	size := len(whole) / 10
	damaged := bytes.Clone(whole)
	damaged[3*size+70] ^= 1
	write(log, damaged)
	code, found, stderr := logVerify(t, dir)
	if v := found[0]; code != exit.Failed || v.OK || v.FaultCount != 1 || v.Faults[0].File != log || *v.Faults[0].Position != int64(3*size) || *v.Faults[0].Offset != 3 {
		t.Fatalf("%d, %+v", code, found)
	}
	if !strings.Contains(stderr, "1 fault found") {
		t.Fatalf("%s", stderr)
	}
	var out bytes.Buffer
	if code := Run(context.Background(), []string{"log", "verify", dir}, IO{In: strings.NewReader(""), Out: &out, Err: &out}); code != exit.Failed ||
		!strings.Contains(out.String(), fmt.Sprintf("first fault: 00000000000000000000.log at byte %d (offset 3)", 3*size)) {
		t.Fatalf("%d, %s", code, out.String())
	}
}

func TestLogVerifyRepairs(t *testing.T) {
	dir := replicaFolder(t)
	log, index := filepath.Join(dir, "00000000000000000000.log"), filepath.Join(dir, "00000000000000000000.index")
	before, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	b[5] ^= 1
	if err := os.WriteFile(index, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, found, _ := logVerify(t, dir); code != exit.Failed || found[0].Faults[0].File != index {
		t.Fatalf("%d, %+v", code, found)
	}
	// Not while a broker has the disk.
	lock, err := vfs.OS().Lock(filepath.Join(filepath.Dir(dir), diskLock))
	if err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := logVerify(t, dir, "--repair-indexes"); code != exit.Failed || !strings.Contains(stderr, "Stop the broker") {
		t.Fatalf("%d, %s", code, stderr)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if code, found, stderr := logVerify(t, dir, "--repair-indexes"); code != exit.OK || !found[0].OK || len(found[0].Repaired) != 1 {
		t.Fatalf("%d, %+v, %s", code, found, stderr)
	}
	if after, err := os.ReadFile(log); err != nil || !bytes.Equal(before, after) {
		t.Fatalf("the .log was changed, %v", err)
	}
}
