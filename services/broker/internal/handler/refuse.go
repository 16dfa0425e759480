package handler

import (
	"sync"

	"github.com/leat-io/leat/libs/rpc"
)

// refusal is why nothing is served at present. The zero value serves.
type refusal struct {
	mu    sync.Mutex
	err   *rpc.Error
	ended chan struct{} // closed when serving ends
}

// Refuse ends every stream and answers every request with an error from now on; nil
// serves again. Probes of controllers are answered all the same.
func (h *Handlers) Refuse(err *rpc.Error) {
	r := &h.refused
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil && r.err == nil:
		close(r.channel())
	case err == nil && r.err != nil:
		r.ended = nil
	}
	r.err = err
}

// channel is closed when serving ends. The caller holds mu.
func (r *refusal) channel() chan struct{} {
	if r.ended == nil {
		r.ended = make(chan struct{})
	}
	return r.ended
}

// serving gives a channel that is closed when serving ends, or why nothing is served
// now.
func (r *refusal) serving() (<-chan struct{}, *rpc.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.channel(), r.err
}

// reason is why serving has ended.
func (r *refusal) reason(fallback *rpc.Error) *rpc.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	return fallback // it has begun anew meanwhile
}
