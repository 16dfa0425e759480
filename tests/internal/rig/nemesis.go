package rig

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/leat-io/leat/tests/internal/proxy"
)

// Kill kills processes at once, as kill -9 does; from then on dials to them are
// refused.
func (r *Rig) Kill(names ...string) {
	r.t.Helper()
	var wait sync.WaitGroup
	for _, name := range names {
		life := r.life(name)
		if life == nil {
			r.t.Fatalf("%s does not run", name)
		}
		wait.Go(func() {
			if r.o.Start != nil && r.spec(name).Kind != Etcd {
				r.Net.Silence(name) // it cannot be ended without its noticing
			}
			life.Kill()
			r.gone(name, life)
		})
	}
	wait.Wait()
}

// KillAll kills every process that runs, also etcd, unless it is spared.
func (r *Rig) KillAll(spared ...string) {
	r.t.Helper()
	var names []string
	for _, name := range r.Names() {
		if r.Running(name) && !slices.Contains(spared, name) {
			names = append(names, name)
		}
	}
	r.Kill(names...)
}

// Stop stops processes in order, as SIGTERM does, and demands that they do.
func (r *Rig) Stop(names ...string) {
	r.t.Helper()
	for _, name := range names {
		life := r.life(name)
		if life == nil {
			r.t.Fatalf("%s does not run", name)
		}
		if err := life.Terminate(time.Minute); err != nil {
			r.t.Errorf("%s did not stop in order: %v", name, err)
		}
		r.gone(name, life)
	}
}

// Pause stops a process where it is, as SIGSTOP does; Resume lets it go on.
func (r *Rig) Pause(name string) {
	r.t.Helper()
	if err := r.life(name).Pause(); err != nil {
		r.t.Fatalf("pause %s: %v", name, err)
	}
}

// Resume lets a paused process go on.
func (r *Rig) Resume(name string) {
	r.t.Helper()
	if err := r.life(name).Resume(); err != nil {
		r.t.Fatalf("resume %s: %v", name, err)
	}
}

// Wipe removes the data of a process that does not run.
func (r *Rig) Wipe(name string) {
	r.t.Helper()
	if r.Running(name) {
		r.t.Fatalf("%s runs", name)
	}
	if r.o.Wipe != nil {
		r.o.Wipe(name)
		return
	}
	remove := os.RemoveAll
	if r.small[name] {
		remove = removeContent
	}
	if err := r.onDisk(name, func() error { return remove(r.Dir(name)) }); err != nil {
		r.t.Fatal(err)
	}
}

// removeContent removes what is in a folder, which may be a mount.
func removeContent(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	for _, path := range found {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// WipeBehind removes the records of a broker that runs, as a disk does that is
// pulled: the process keeps what it has open.
func (r *Rig) WipeBehind(name string) {
	r.t.Helper()
	err := r.onDisk(name, func() error { return removeContent(r.Dir(name)) })
	if err != nil {
		r.t.Fatal(err)
	}
}

// Others lists the processes of some kinds but one; proxy.Client is left out.
func (r *Rig) Others(name string, of ...string) []string {
	return slices.DeleteFunc(r.Names(of...), func(other string) bool { return other == name || other == proxy.Client })
}
