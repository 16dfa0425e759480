package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echo serves whoever connects with its own words.
func echo(t *testing.T) (addr string, stop func()) {
	t.Helper()
	addr = free(t)
	return addr, echoAt(t, addr)
}

func echoAt(t *testing.T, addr string) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	conns := []net.Conn{}
	wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wait.Go(func() {
				_, _ = io.Copy(c, c)
				c.Close()
			})
		}
	})
	return sync.OnceFunc(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wait.Wait()
	})
}

func free(t *testing.T) string {
	t.Helper()
	// Connections that others make take their ports on 127.0.0.1, at any moment: there the
	// one that is free now might be taken before it is listened on.
	l, err := net.Listen("tcp", "127.0.77.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// dialFrom dials until it is not refused, for some time.
func dialFrom(t *testing.T, ip, addr string) (net.Conn, error) {
	t.Helper()
	for end := time.Now().Add(long); ; {
		c, err := dialOnce(t, ip, addr)
		if err == nil || time.Now().After(end) {
			return c, err
		}
		<-time.After(time.Millisecond)
	}
}

func dialOnce(t *testing.T, ip, addr string) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: 5 * time.Second}
	c, err := d.Dial("tcp", addr)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// says sends a word and waits so long for its echo.
func says(c net.Conn, word string, limit time.Duration) error {
	if _, err := c.Write([]byte(word)); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, len(word))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != word {
		return errors.New("the echo is " + string(b))
	}
	return nil
}

const long = 10 * time.Second

func TestFaultsBetweenPairs(t *testing.T) {
	target, stop := echo(t)
	defer stop()
	n := New()
	defer n.Close()
	n.Host("127.0.4.1", "a")
	n.Host("127.0.4.2", "b")
	e, err := n.Listen("c", free(t), target)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialOnce(t, "127.0.4.1", e.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("before Up: %v", err)
	}
	e.Up()
	a, err := dialFrom(t, "127.0.4.1", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	b, err := dialFrom(t, "127.0.4.2", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{a, b} {
		if err := says(c, "hello", long); err != nil {
			t.Fatal(err)
		}
	}

	n.Stall("a", "c")
	var timeout net.Error
	if err := says(a, "one", 100*time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("stalled: %v", err)
	}
	if err := says(b, "other", long); err != nil {
		t.Errorf("another pair: %v", err)
	}
	n.Heal("a", "c")
	if err := says(a, "two", long); err == nil || err.Error() != "the echo is one" {
		t.Errorf("what was held back comes first: %v", err)
	}

	n.Cut("c", "a")
	if err := says(a, "cut", long); err == nil {
		t.Error("a cut connection carries bytes")
	}
	if c, err := dialFrom(t, "127.0.4.1", e.Addr()); err != nil {
		t.Errorf("a cut pair is not refused: that would prove a death: %v", err)
	} else if err := says(c, "cut", long); err == nil {
		t.Error("a new connection of a cut pair carries bytes")
	}
	if err := says(b, "still", long); err != nil {
		t.Errorf("another pair: %v", err)
	}
	n.HealAll()
	n.Silence("b")
	n.HealAll()
	if err := says(b, "silenced", long); err == nil {
		t.Error("a silenced process is heard")
	}
	n.Revive("b")
	if c, err := dialFrom(t, "127.0.4.2", e.Addr()); err != nil {
		t.Error(err)
	} else if err := says(c, "revived", long); err != nil {
		t.Error(err)
	}
	if left := n.Faults(); len(left) > 0 {
		t.Errorf("after HealAll: %v", left)
	}
	if c, err := dialFrom(t, "127.0.4.1", e.Addr()); err != nil {
		t.Error(err)
	} else if err := says(c, "again", long); err != nil {
		t.Error(err)
	}
}

func TestDelay(t *testing.T) {
	target, stop := echo(t)
	defer stop()
	n := New()
	defer n.Close()
	e, err := n.Listen("c", free(t), target)
	if err != nil {
		t.Fatal(err)
	}
	e.Up()
	c, err := dialFrom(t, "127.0.0.1", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	n.Delay(50*time.Millisecond, Client, "c")
	start := time.Now()
	if err := says(c, "slow", long); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("there and back took %v", took)
	}
}

// TestADeadProcessRefuses: others take refused dials for a proof of death.
func TestADeadProcessRefuses(t *testing.T) {
	target, stop := echo(t)
	n := New()
	defer n.Close()
	e, err := n.Listen("c", free(t), target)
	if err != nil {
		t.Fatal(err)
	}
	e.Up()
	c, err := dialFrom(t, "127.0.0.1", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := says(c, "hello", long); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := says(c, "dead", long); err == nil {
		t.Error("a connection outlives its process")
	}
	// The proxy finds out with the first connection and refuses the next.
	for tries := 0; ; tries++ {
		c, err := dialOnce(t, "127.0.0.1", e.Addr())
		if errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
		if err == nil && says(c, "dead", long) == nil || tries > 100 {
			t.Fatalf("the dead answer, or %d tries were not refused: %v", tries, err)
		}
	}
	if err := e.Down(); err != nil {
		t.Error(err)
	}
	// The target comes up only some time after the proxy was told to carry.
	e.Up()
	if _, err := dialOnce(t, "127.0.0.1", e.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the target is not there yet: %v", err)
	}
	defer echoAt(t, target)()
	c, err = dialFrom(t, "127.0.0.1", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := says(c, "risen", long); err != nil {
		t.Error(err)
	}
}
