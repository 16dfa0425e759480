package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Endpoint is a proxy of one process.
type Endpoint struct {
	network            *Network
	name, addr, target string

	mu       sync.Mutex
	listener net.Listener       // nil while dials are refused
	stop     context.CancelFunc // nil while down; ends the waiting for the target
}

// probeInterval is how often a target that does not listen yet is tried.
const probeInterval = 5 * time.Millisecond

// Addr is the address that the process has to advertise.
func (e *Endpoint) Addr() string { return e.addr }

// Up lets connections be accepted as soon as the target listens.
func (e *Endpoint) Up() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	e.network.wait.Go(func() { e.open(ctx) })
}

// open waits for the target and then accepts.
func (e *Endpoint) open(ctx context.Context) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		if e.targetListens(ctx) && e.listen(ctx) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (e *Endpoint) targetListens(ctx context.Context) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", e.target)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// listen reports whether there is nothing left to wait for.
func (e *Endpoint) listen(ctx context.Context) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Err() != nil {
		return true
	}
	l, err := net.Listen("tcp", e.addr)
	if err != nil {
		return false
	}
	e.listener = l
	e.network.wait.Go(func() { e.accept(ctx, l) })
	return true
}

// Down makes connections be refused, and breaks those that stand.
func (e *Endpoint) Down() error {
	e.mu.Lock()
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
	e.mu.Unlock()
	err := e.refuse()
	n := e.network
	n.mu.Lock()
	var mine []*link
	for l := range n.links {
		if l.to == e.name {
			mine = append(mine, l)
		}
	}
	n.mu.Unlock()
	for _, l := range mine {
		l.close()
	}
	return err
}

func (e *Endpoint) refuse() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		return nil
	}
	err := e.listener.Close()
	e.listener = nil
	return err
}

// targetGone refuses dials until the target listens again.
func (e *Endpoint) targetGone(ctx context.Context, l net.Listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener != l {
		return
	}
	_ = l.Close() // a listener's close does not fail
	e.listener = nil
	e.network.wait.Go(func() { e.open(ctx) })
}

func (e *Endpoint) accept(ctx context.Context, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		e.network.wait.Go(func() { e.carry(ctx, l, conn.(*net.TCPConn)) })
	}
}

// carry is the life of one connection.
func (e *Endpoint) carry(ctx context.Context, listener net.Listener, in *net.TCPConn) {
	from := e.network.nameOf(in.RemoteAddr())
	l := &link{network: e.network, from: from, to: e.name, in: in, ended: make(chan struct{})}
	if !l.register() {
		l.close()
		return
	}
	defer l.unregister()
	dialer := net.Dialer{Timeout: 10 * time.Second}
	out, err := dialer.DialContext(ctx, "tcp", e.target)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			e.targetGone(ctx, listener)
		}
		l.close()
		return
	}
	if !l.attach(out.(*net.TCPConn)) {
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(in, l.out, pair{l.from, l.to}) })
	pumps.Go(func() { l.pump(l.out, in, pair{l.to, l.from}) })
	pumps.Wait()
}

// link is one connection through a proxy.
type link struct {
	network  *Network
	from, to string
	in       *net.TCPConn

	mu     sync.Mutex
	out    *net.TCPConn
	closed bool
	ended  chan struct{}
}

func (l *link) between(p pair) bool {
	return l.from == p.from && l.to == p.to || l.from == p.to && l.to == p.from
}

// register makes the link known to those who break it; false: it is broken.
func (l *link) register() bool {
	n := l.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.silenced[l.from] || n.silenced[l.to] || n.faults[pair{l.from, l.to}].cut || n.faults[pair{l.to, l.from}].cut {
		return false
	}
	n.links[l] = struct{}{}
	return true
}

func (l *link) unregister() {
	l.close()
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	delete(l.network.links, l)
}

func (l *link) attach(out *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = out.Close()
		return false
	}
	l.out = out
	return true
}

// close breaks the connection on both sides, without delivering what is under way.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	close(l.ended)
	_ = l.in.SetLinger(0)
	_ = l.in.Close()
	if l.out != nil {
		_ = l.out.SetLinger(0)
		_ = l.out.Close()
	}
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// pump carries one direction until either side ends.
func (l *link) pump(src, dst *net.TCPConn, p pair) {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	for {
		if !l.open(p) {
			return
		}
		n, err := src.Read(*b)
		if n > 0 {
			if !l.open(p) || !l.delay(p) {
				return
			}
			if _, werr := dst.Write((*b)[:n]); werr != nil {
				l.close()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = dst.CloseWrite()
			return
		}
		if err != nil {
			l.close()
			return
		}
	}
}

// open waits until the direction carries bytes; false: the link has ended.
func (l *link) open(p pair) bool {
	for {
		f, changed := l.network.state(p)
		if !f.stall {
			return true
		}
		select {
		case <-changed:
		case <-l.ended:
			return false
		}
	}
}

func (l *link) delay(p pair) bool {
	f, _ := l.network.state(p)
	if f.delay == 0 {
		return true
	}
	select {
	case <-time.After(f.delay):
		return true
	case <-l.ended:
		return false
	}
}
