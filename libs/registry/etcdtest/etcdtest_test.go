package etcdtest

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestRestartKeepsDataAndPort(t *testing.T) {
	s := StartServer(t)
	before := s.Endpoints[0]
	put(t, s, "k", "v")
	s.Stop()
	s.Restart()
	if s.Endpoints[0] != before {
		t.Fatalf("endpoint moved from %s to %s", before, s.Endpoints[0])
	}
	c := client(t, s)
	got, err := c.Get(t.Context(), "k")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
		t.Fatalf("after the restart: %v, %v", got, err)
	}
}

func client(t *testing.T, s *Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: s.Endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func put(t *testing.T, s *Server, k, v string) {
	t.Helper()
	if _, err := client(t, s).Put(t.Context(), k, v); err != nil {
		t.Fatal(err)
	}
}
