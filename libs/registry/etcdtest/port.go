package etcdtest

import (
	"fmt"
	"syscall"
	"testing"
)

// reserve finds a free port on 127.0.0.1 and keeps it from everybody who asks for just
// any port, and from connections, until the test ends. Who knows it may listen there, as
// often as it likes: in between, the port refuses.
func reserve(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	syscall.CloseOnExec(fd)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	// Two sockets that both allow this share a port while at most one of them listens.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}
