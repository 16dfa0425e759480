//go:build failpoints

package failpoint

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func arm(t *testing.T, text string) {
	t.Helper()
	if err := Arm(text); err != nil {
		t.Fatal(err)
	}
}

func TestErrors(t *testing.T) {
	arm(t, "commitlog.fsync=error(EIO)*2+1")
	var got []bool
	for range 5 {
		err := Hit(LogFsync)
		got = append(got, errors.Is(err, syscall.EIO))
	}
	want := [5]bool{false, true, true, false, false}
	if [5]bool(got) != want {
		t.Errorf("failed: %v, want %v", got, want)
	}
	arm(t, "commitlog.append=error(ENOSPC); commitlog.append=off")
	if err := Hit(LogAppend); err != nil {
		t.Error(err)
	}
	if c := Counts()[LogFsync]; c != (Count{5, 2}) {
		t.Errorf("counts: %+v", c)
	}
}

func TestPercent(t *testing.T) {
	arm(t, "commitlog.roll=error%50")
	defer arm(t, "commitlog.roll=off")
	failed := 0
	for range 1000 {
		if Hit(LogRoll) != nil {
			failed++
		}
	}
	if failed < 350 || failed > 650 {
		t.Errorf("%d of 1000 failed, want about half", failed)
	}
}

func TestPauseEndsWithOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arm(t, "broker.acknowledge=pause")
		done := make(chan error)
		go func() { done <- Hit(Acknowledge) }()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("a paused place went on")
		default:
		}
		arm(t, "broker.acknowledge=off")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arm(t, "broker.acknowledge=delay(3s)*1")
		began := time.Now()
		if err := Hit(Acknowledge); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("%v, %v", err, time.Since(began))
		}
	})
}

func TestSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arm(t, "clock=skew(-2h)")
		defer arm(t, "clock=off")
		if d := time.Since(Now()); d != 2*time.Hour {
			t.Errorf("the clock is %v behind", d)
		}
	})
}

func TestWrongTexts(t *testing.T) {
	for _, text := range []string{
		"x", "x=error", "commitlog.fsync=explode", "commitlog.fsync=error(EPERM)", "commitlog.fsync=delay(soon)", "commitlog.fsync=delay(1s",
		"commitlog.fsync=error*x", "commitlog.fsync=error*-1", "clock=error", "commitlog.fsync=skew(1s)", "commitlog.fsync=error!3",
	} {
		if err := Arm(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestHandler(t *testing.T) {
	s := httptest.NewServer(Handler())
	defer s.Close()
	put := func(body string) int {
		req, err := http.NewRequest(http.MethodPut, s.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if code := put("controller.txn.before=error*1"); code != http.StatusOK {
		t.Errorf("PUT: %d", code)
	}
	if Hit(TxnBefore) == nil {
		t.Error("the place does not fail")
	}
	if code := put("nowhere=error"); code != http.StatusBadRequest {
		t.Errorf("a wrong PUT: %d", code)
	}
}

// TestEnvironment starts this test anew, armed by the environment: with a crash, and
// with nonsense.
func TestEnvironment(t *testing.T) {
	if os.Getenv("LEAT_FAILPOINTS") != "" {
		err := Hit(LogFsync)
		t.Fatalf("it goes on with %v", err)
	}
	again := func(text string) *os.ProcessState {
		cmd := exec.Command(os.Args[0], "-test.run=^TestEnvironment$")
		cmd.Env = append(os.Environ(), "LEAT_FAILPOINTS="+text)
		if err := cmd.Run(); err == nil {
			t.Errorf("%q: it ended well", text)
		}
		return cmd.ProcessState
	}
	if status := again("commitlog.fsync=crash").Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("a crash: %v", status)
	}
	if state := again("commitlog.fsync=explode"); state.ExitCode() != 2 {
		t.Errorf("nonsense: %v", state)
	}
}
