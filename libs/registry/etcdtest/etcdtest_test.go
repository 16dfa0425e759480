package etcdtest

import (
	"net"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestRestartKeepsDataAndPort(t *testing.T) {
	s := StartServer(t)
	before := s.Endpoints[0]
	put(t, s, "k", "v")
	s.Stop()
	// Who knows the port may listen there meanwhile, and nobody else is given it.
	if lis, err := net.Listen("tcp", before); err != nil {
		t.Fatal(err)
	} else if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if lis.Addr().String() == before {
			t.Fatal("its port is given away while it is stopped")
		}
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
	}
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
