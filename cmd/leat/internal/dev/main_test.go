package dev

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain also plays the services: the supervisor's tests run this binary under
// their names.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	switch {
	case len(os.Args) > 1 && os.Args[1] == "etcd":
		os.Exit(playEtcd(os.Args[2:]))
	case name == kindBroker || name == kindController || name == kindCoordinator || name == kindGateway:
		os.Exit(playService(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func flagsOf(args []string) map[string]string {
	m := map[string]string{}
	for _, a := range args {
		k, v, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		m[k] = v
	}
	return m
}

func playEtcd(args []string) int {
	f := flagsOf(args)
	return play(f["listen"], "", f["addr-file"])
}

func playService(args []string) int {
	f := flagsOf(args)
	if f["fail"] != "" {
		fmt.Fprintln(os.Stderr, "the fake service fails, as told")
		return 1
	}
	return play(f["listen"], f["ops.listen"], f["addr.file"])
}

// play listens until SIGTERM, and is ready a little later than it listens.
func play(listen, ops, addrFile string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	l, err := net.Listen("tcp", listen)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer l.Close()
	ready := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(ready) })
	if ops != "" {
		server := &http.Server{Addr: ops, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			select {
			case <-ready:
			default:
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})}
		defer server.Close()
		go func() {
			if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
	if err := writeWhole(addrFile, l.Addr().String()+"\n"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-signals
	fmt.Fprintln(os.Stderr, "stopped by SIGTERM")
	return 0
}

// binaries is a folder in which this test binary has the names of the services.
func binaries(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, kind := range []string{kindBroker, kindController, kindCoordinator, kindGateway} {
		if err := os.Symlink(self, filepath.Join(dir, kind)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
