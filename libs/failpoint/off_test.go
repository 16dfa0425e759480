//go:build !failpoints

package failpoint_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/failpoint"
)

// place stands for code that has a place.
func place(n int) (int, error) {
	if err := failpoint.Hit(failpoint.LogFsync); err != nil {
		return 0, err
	}
	return n + 1, nil
}

// TestNothingIsLeftWithoutTheTag looks at what the compiler makes of a place: no
// call of this package may be in it, and what remains of the process must know
// nothing of failpoints.
func TestNothingIsLeftWithoutTheTag(t *testing.T) {
	out := filepath.Join(t.TempDir(), "test")
	build := exec.Command("go", "test", "-c", "-o", out, ".")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	dump, err := exec.Command("go", "tool", "objdump", "-s", `failpoint_test\.(place|BenchmarkHit)`, out).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, dump)
	}
	if !strings.Contains(string(dump), "TEXT") {
		t.Fatalf("the benchmark is not in the binary: %s", dump)
	}
	if strings.Contains(string(dump), "failpoint.Hit") {
		t.Errorf("a place calls Hit:\n%s", dump)
	}
	symbols, err := exec.Command("go", "tool", "nm", out).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, symbols)
	}
	for line := range strings.Lines(string(symbols)) {
		if strings.Contains(line, "leat/libs/failpoint.") && !strings.Contains(line, "inittask") {
			t.Errorf("this is left of the package: %s", line)
		}
	}
}

// BenchmarkHit shows what a place costs in ordinary builds: nothing, about 0.3 ns for
// the loop itself.
func BenchmarkHit(b *testing.B) {
	n := 0
	for b.Loop() {
		if err := failpoint.Hit(failpoint.LogFsync); err != nil {
			b.Fatal(err)
		}
		n++
	}
	if got, err := place(n); err != nil || got != n+1 {
		b.Fatal(got, err)
	}
}
