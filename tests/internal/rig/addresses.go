package rig

import "github.com/leat-io/leat/tests/internal/proxy"

// Listens is where a process itself listens, behind its proxy.
func (r *Rig) Listens(name string) string { r.t.Helper(); return r.spec(name).Settings["listen"] }

// Ops is where a process serves its operations HTTP.
func (r *Rig) Ops(name string) string { r.t.Helper(); return r.spec(name).Settings["ops.listen"] }

// Addr is the address by which a process is known: that of its proxy.
func (r *Rig) Addr(name string) string { r.t.Helper(); return r.endpoints[r.spec(name).Name].Addr() }

func (r *Rig) proxy(name, addr, target string) *proxy.Endpoint {
	r.t.Helper()
	e, err := r.Net.Listen(name, addr, target)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}
