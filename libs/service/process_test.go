package service

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// asMain makes the test binary a service's binary.
const asMain = "SERVICE_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		Main("broker", 5331, fakeDefaults(), newFake)
	}
	os.Exit(m.Run())
}

// command starts this binary as a service, and waits for a line of its log.
func command(t *testing.T, text string, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asMain+"=1")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
	})
	r := bufio.NewReader(pipe)
	waitLine(t, r, text)
	return cmd, r
}

func waitLine(t *testing.T, r *bufio.Reader, text string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			t.Fatalf("no line with %q: %v", text, err)
		}
	}
}

func exitCode(t *testing.T, cmd *exec.Cmd, r io.Reader) int {
	t.Helper()
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Error(err)
	}
	var ee *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// Real signals to a real process.
func TestRealSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd, r := command(t, "msg=ready", anyPort)
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if code := exitCode(t, cmd, r); code != ExitOK {
			t.Errorf("%s: exit code %d", sig, code)
		}
	}
	cmd, r := command(t, "msg=ready", anyPort, "--fake.mode=stuck", "--shutdown.timeout=1h")
	for _, line := range []string{"msg=stopping", "at once"} {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		waitLine(t, r, line)
	}
	if code := exitCode(t, cmd, r); code != ExitInterrupted {
		t.Errorf("second signal: exit code %d", code)
	}
}

func TestRealUsageError(t *testing.T) {
	cmd, r := command(t, "did you mean \"listen\"", "--listn=x")
	if code := exitCode(t, cmd, r); code != ExitUsage {
		t.Errorf("exit code %d", code)
	}
}
