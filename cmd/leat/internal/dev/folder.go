package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// folder is the data folder of a mesh:
//
//	<service>-<n>/           what the process keeps: etcd-1, broker-1, …
//	run/<service>-<n>.pid    its process id, with --processes
//	run/<service>-<n>.addr   where it listens, host:port
//	run/dev.pid              process id of leat dev
//	run/dev.lock             locked while leat dev runs
//	run/dev.sock             takes restart, stop and start
//	log/<service>-<n>.log    what it says
type folder string

func (f folder) instance(name string) string { return filepath.Join(string(f), name) }
func (f folder) run(name string) string      { return filepath.Join(string(f), "run", name) }
func (f folder) pid(name string) string      { return f.run(name + ".pid") }
func (f folder) addr(name string) string     { return f.run(name + ".addr") }
func (f folder) log(name string) string      { return filepath.Join(string(f), "log", name+".log") }
func (f folder) socket() string              { return f.run("dev.sock") }

// takeFolder makes the folder, or a temporary one if path is empty, and locks
// it. The lock ends with release, or with the process.
func takeFolder(path string) (f folder, release func() error, err error) {
	if path == "" {
		if path, err = os.MkdirTemp("", "leat-dev-"); err != nil {
			return "", nil, fmt.Errorf("make a temporary data folder: %w", err)
		}
	}
	if f, err = folderOf(path); err != nil {
		return "", nil, err
	}
	for _, dir := range []string{f.run(""), filepath.Dir(f.log("x"))} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", nil, exit.Failure("Choose another folder with --data.", "make the data folder: %w", err)
		}
	}
	lock, err := os.OpenFile(f.run("dev.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return "", nil, exit.Failure("Choose another folder with --data.", "lock the data folder: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	for deadline := time.Now().Add(dyingLimit); errors.Is(err, syscall.EWOULDBLOCK) && f.holderDies() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		lock.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return "", nil, fmt.Errorf("lock %s: %w", f.run("dev.lock"), err)
		}
		who := "another leat dev"
		if pid, ok := readPid(f.pid("dev")); ok {
			who = fmt.Sprintf("another leat dev (pid %d)", pid)
		}
		return "", nil, exit.Failure("Stop that one, or choose another folder with --data.", "the data folder %s is in use by %s", f, who)
	}
	return f, lock.Close, nil
}

// holderDies reports whether the leat dev that has left its pid is gone or going:
// the kernel takes back the memory of a killed process, and with it its command
// line, before its locks and ports.
func (f folder) holderDies() bool {
	pid, ok := readPid(f.pid("dev"))
	if !ok || syscall.Kill(pid, 0) != nil {
		return ok
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(line) == 0
}

// cleanRun removes what an earlier life has left in run/, once its processes
// are gone: they were killed with their supervisor, or are killed here. It
// reports whether there was an earlier life that did not end in order.
func (f folder) cleanRun() (crashed bool, err error) {
	stale, err := filepath.Glob(f.run("*.pid"))
	if err != nil {
		return false, err
	}
	crashed = len(stale) > 0
	for _, path := range stale {
		if pid, ok := readPid(path); ok && pid != os.Getpid() {
			if err := f.awaitDeath(pid); err != nil {
				return crashed, err
			}
		}
	}
	addrs, err := filepath.Glob(f.run("*.addr*")) // also half-written ones
	if err != nil {
		return crashed, err
	}
	for _, path := range append(append(stale, addrs...), f.socket()) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return crashed, fmt.Errorf("remove what an earlier leat dev has left: %w", err)
		}
	}
	return crashed, nil
}

// awaitDeath waits for a process of an earlier life, and ends it if it stays.
func (f folder) awaitDeath(pid int) error {
	deadline := time.Now().Add(5 * time.Second)
	for killed := false; f.isOurs(pid); {
		if time.Now().After(deadline) {
			if killed {
				return exit.Failure("End it by hand.", "process %d of an earlier leat dev on %s does not end", pid, f)
			}
			killed, deadline = true, time.Now().Add(5*time.Second)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// isOurs reports whether the process lives and was started for this folder: its
// command line names it.
func (f folder) isOurs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false // gone meanwhile, or a system that does not tell
	}
	return strings.Contains(string(line), string(f)+string(filepath.Separator))
}

func readPid(path string) (int, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid, err == nil && pid > 0
}

// writeWhole writes a file that appears with all of its content at once.
func writeWhole(path, text string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp*")
	if err != nil {
		return err
	}
	_, err = tmp.WriteString(text)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// forget removes the run files of an instance.
func (f folder) forget(name string) error {
	var errs []error
	for _, path := range []string{f.pid(name), f.addr(name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tail is the end of a log file, for errors.
func tail(path string, most int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if len(text) > most {
		text = text[len(text)-most:]
		if i := strings.IndexByte(string(text), '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	return strings.TrimSpace(string(text))
}
