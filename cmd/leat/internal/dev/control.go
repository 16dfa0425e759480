package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// request asks the supervisor for something; one is sent by connection.
type request struct {
	Verb    string `json:"verb"` // restart, stop or start
	Service string `json:"service"`
}

// response answers a request. Code is an exit code.
type response struct {
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
	Next  string `json:"next,omitempty"`
}

// controlServer takes requests from the socket in the data folder.
type controlServer struct {
	listener net.Listener
	cancel   context.CancelFunc
	once     sync.Once
	wait     sync.WaitGroup
}

func (s *supervisor) listenControl(ctx context.Context) (*controlServer, error) {
	path, done, err := socketPath(s.folder.socket())
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	err = errors.Join(err, done())
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.folder.socket(), err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // path may be a detour; cleaned up below
	ctx, cancel := context.WithCancel(ctx)
	c := &controlServer{listener: listener, cancel: cancel}
	c.wait.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				_ = os.Remove(s.folder.socket())
				return
			}
			c.wait.Go(func() { s.serveControl(ctx, conn) })
		}
	})
	return c, nil
}

// close ends the taking of requests; those under way are broken off.
func (c *controlServer) close() {
	c.once.Do(func() {
		c.cancel()
		c.listener.Close()
		c.wait.Wait()
	})
}

func (s *supervisor) serveControl(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	var q request
	if err := json.NewDecoder(conn).Decode(&q); err != nil {
		return
	}
	s.say("%s %s, as asked", q.Verb, q.Service)
	var r response
	if err := s.act(ctx, q.Verb, q.Service); err != nil {
		r = response{Code: exit.CodeOf(err), Error: err.Error()}
		var own *exit.Error
		if errors.As(err, &own) {
			r.Next = own.Next
		}
	}
	_ = json.NewEncoder(conn).Encode(r) // whoever asked may have gone
}

// Control has the leat dev that runs on the folder restart, stop or start one
// instance, and returns when that is done.
func Control(ctx context.Context, data, verb, service string) error {
	f, err := folderOf(data)
	if err != nil {
		return err
	}
	path, done, err := socketPath(f.socket())
	if err != nil {
		return noDev(f, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err = errors.Join(err, done()); err != nil {
		return noDev(f, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(request{Verb: verb, Service: service}); err != nil {
		return noDev(f, err)
	}
	var r response
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return exit.With(exit.Unknown, fmt.Errorf("the leat dev on %s ended before it had answered: %w", f, err))
	}
	if r.Code != exit.OK {
		return &exit.Error{Code: r.Code, Err: errors.New(r.Error), Next: r.Next}
	}
	return nil
}

func noDev(f folder, err error) error {
	return exit.Failure("Start one with `leat dev --data "+quoted(string(f))+"`.", "no leat dev runs on %s: %w", f, err)
}

// maxSocketPath is below what the systems allow for the path of a socket.
const maxSocketPath = 100

// socketPath gives a name for the socket that is short enough for the system:
// on Linux one by way of the open folder. done is called after its use.
func socketPath(path string) (short string, done func() error, err error) {
	if len(path) <= maxSocketPath || runtime.GOOS != "linux" {
		return path, func() error { return nil }, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), dir.Close, nil
}
