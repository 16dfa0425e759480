package brokertest

import (
	"strings"
	"sync"

	"github.com/leat-io/leat/libs/vfs"
)

// SyncGate is a file system whose syncs, or reads, of chosen files can be held up and
// counted. Other calls go on meanwhile.
type SyncGate struct {
	vfs.FS

	mu    sync.Mutex
	match string
	reads bool          // reads are held up, and not syncs
	gate  chan struct{} // nil: open
	count int
	began chan struct{}
}

// NewSyncGate makes an open gate before a file system.
func NewSyncGate(inner vfs.FS) *SyncGate { return &SyncGate{FS: inner} }

// Hold holds up syncs of files whose path contains match until Release; began
// gets a value when one is held.
func (g *SyncGate) Hold(match string) (began <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.match, g.reads, g.gate, g.count, g.began = match, false, make(chan struct{}), 0, make(chan struct{}, 1)
	return g.began
}

// HoldReads is Hold for reads.
func (g *SyncGate) HoldReads(match string) (began <-chan struct{}) {
	began = g.Hold(match)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reads = true
	return began
}

// Release opens the gate.
func (g *SyncGate) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gate != nil {
		close(g.gate)
		g.gate = nil
	}
}

// Count is how many syncs have been asked for since Hold.
func (g *SyncGate) Count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count
}

func (g *SyncGate) pass(path string, read bool) {
	g.mu.Lock()
	gate := g.gate
	if read == g.reads && g.match != "" && strings.Contains(path, g.match) {
		g.count++
		if gate != nil {
			select {
			case g.began <- struct{}{}:
			default:
			}
		}
	} else {
		gate = nil
	}
	g.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// Create makes a file behind the gate.
func (g *SyncGate) Create(path string) (vfs.File, error) { return g.wrap(path, g.FS.Create) }

// Open opens a file behind the gate.
func (g *SyncGate) Open(path string) (vfs.File, error) { return g.wrap(path, g.FS.Open) }

func (g *SyncGate) wrap(path string, open func(string) (vfs.File, error)) (vfs.File, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	return &gatedFile{File: f, gate: g, path: path}, nil
}

type gatedFile struct {
	vfs.File
	gate *SyncGate
	path string
}

func (f *gatedFile) Sync() error {
	f.gate.pass(f.path, false)
	return f.File.Sync()
}

func (f *gatedFile) ReadAt(p []byte, off int64) (int, error) {
	f.gate.pass(f.path, true)
	return f.File.ReadAt(p, off)
}
