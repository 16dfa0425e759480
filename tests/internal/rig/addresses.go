package rig

// Listens is where a process itself listens, behind its proxy.
func (r *Rig) Listens(name string) string { r.t.Helper(); return r.spec(name).Settings["listen"] }

// Ops is where a process serves its operations HTTP.
func (r *Rig) Ops(name string) string { r.t.Helper(); return r.spec(name).Settings["ops.listen"] }
