package etcdtest

import (
	"net/url"
	"os"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startTimeout bounds the start of a server on a busy machine.
const startTimeout = 60 * time.Second

// Server is an etcd server of one member, on a loopback port of its own.
type Server struct {
	// Endpoints are what a client connects to; the same after a restart.
	Endpoints []string

	t   testing.TB
	dir string
	url url.URL
	run *embed.Etcd
}

// Start runs a server until the test ends and returns its endpoints.
func Start(t testing.TB) []string {
	t.Helper()
	return StartServer(t).Endpoints
}

// StartServer runs a server until the test ends. It fails the test if the server
// does not start.
func StartServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), url: url.URL{Scheme: "http", Host: reserve(t)}}
	s.Restart()
	t.Cleanup(s.Stop)
	return s
}

// Restart starts the server again on the same data and port after Stop.
func (s *Server) Restart() {
	s.t.Helper()
	if s.run != nil {
		return
	}
	cfg := embed.NewConfig()
	cfg.Dir = s.dir
	cfg.LogLevel = "fatal" // stopping it makes errors
	cfg.TickMs = 10
	cfg.ElectionMs = 100
	// Tests crash processes, not the machine.
	cfg.UnsafeNoFsync = true
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{s.url}, []url.URL{s.url}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	run, err := embed.StartEtcd(cfg)
	if err != nil {
		s.t.Fatalf("start etcd: %v", err)
	}
	s.run = run
	select {
	case <-run.Server.ReadyNotify():
	case err := <-run.Err():
		s.t.Fatalf("etcd stopped while it started: %v", err)
	case <-time.After(startTimeout):
		s.t.Fatalf("etcd is not ready after %v", startTimeout)
	}
	s.Endpoints = []string{s.url.Host}
}

// Stop stops the server; its data stay. Stopping twice is harmless.
func (s *Server) Stop() {
	if s.run == nil {
		return
	}
	s.run.Close()
	s.run = nil
}

// GoBack stops the server, puts its data back to what they were when backup was
// taken, and starts it again: the same etcd, earlier in its history.
func (s *Server) GoBack(backup string) {
	s.t.Helper()
	s.Stop()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatalf("remove etcd's data: %v", err)
	}
	if err := os.CopyFS(s.dir, os.DirFS(backup)); err != nil {
		s.t.Fatalf("restore etcd's data: %v", err)
	}
	s.Restart()
}

// Backup stops the server, copies its data to a folder of the test, starts it again
// and returns the folder.
func (s *Server) Backup() string {
	s.t.Helper()
	s.Stop()
	backup := s.t.TempDir()
	if err := os.CopyFS(backup, os.DirFS(s.dir)); err != nil {
		s.t.Fatalf("copy etcd's data: %v", err)
	}
	s.Restart()
	return backup
}
