package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/proxy"
)

// The kinds of services, in the order in which they start.
const (
	Etcd        = "etcd"
	Controller  = "controller"
	Broker      = "broker"
	Coordinator = "coordinator"
	Gateway     = "gateway"
)

var kinds = []string{Etcd, Controller, Broker, Coordinator, Gateway}

// layout has the ports and addresses of `leat dev`.
var layout = map[string]struct{ octet, ports, ops int }{
	Etcd: {1, 80, 0}, Controller: {2, 20, 140}, Coordinator: {3, 40, 160}, Broker: {4, 60, 180}, Gateway: {5, 0, 120},
}

const etcdPeers = 100

// Options describes a mesh; the zero value is three brokers, three controllers
// and one of everything else, a process each.
type Options struct {
	Brokers, Controllers, Coordinators, Gateways, Etcds int
	// Set are settings, service[.n].key=value.
	Set []string
	// SmallDisks are processes whose data get a disk of their own, by its bytes, which
	// FillDisk can fill. They need the right to mount; see Rig.SmallDisk.
	SmallDisks map[string]int64
	// Start begins a life; nil: a process. etcd is always a process.
	Start Starter
	// Wipe empties the disk of a broker that does not run, and ReadFolder reads the
	// files of a folder on a broker's disk, by their names; nil: the system's. They
	// are for a Start whose disks lie elsewhere.
	Wipe       func(name string)
	ReadFolder func(name, path string) (map[string][]byte, error)
}

// Spec is what a life is made from.
type Spec struct {
	Kind string
	N    int
	Name string // kind-n
	// Settings of the service; of etcd: name, dir, listen, peer, source and
	// initial-cluster.
	Settings map[string]string
	// Dir is its data, Log the file that its log is appended to.
	Dir, Log string
}

// Life is one run of a service.
type Life interface {
	// Kill ends it at once, whatever it is at, and returns when it is gone.
	Kill()
	// Terminate asks it to stop in order, and kills it after the limit; it returns
	// how it ended when it is gone.
	Terminate(limit time.Duration) error
	// Pause stops it from doing anything, Resume lets it go on.
	Pause() error
	Resume() error
	// Done is closed when it is gone.
	Done() <-chan struct{}
}

// Starter begins a life. It does not wait until it is ready.
type Starter func(*Spec) (Life, error)

// Rig is a mesh.
type Rig struct {
	t        *testing.T
	Net      *proxy.Network
	Data     string
	PortBase int
	specs    []*Spec
	start    Starter
	spawn    *spawner
	o        Options
	// small are the processes that have small disks; smallRefused says why others have not.
	small        map[string]bool
	smallRefused error

	mu        sync.Mutex
	lives     map[string]Life
	endpoints map[string]*proxy.Endpoint
	peers     map[string]*proxy.Endpoint // of etcd's members, for each other
	watchers  sync.WaitGroup
}

// New plans a mesh without starting anything. It is taken down when the test ends;
// if that has failed, the ends of all logs are printed.
func New(t *testing.T, o Options) *Rig {
	t.Helper()
	r := &Rig{
		t: t, Net: proxy.New(), Data: mesh.DataFolder(t), PortBase: mesh.FreePorts(t), start: o.Start, spawn: newSpawner(t), o: o,
		lives: map[string]Life{}, endpoints: map[string]*proxy.Endpoint{}, peers: map[string]*proxy.Endpoint{}, small: map[string]bool{},
	}
	t.Cleanup(r.spawn.close)
	if r.start == nil {
		r.start = r.spawn.process
	}
	r.plan(&o)
	r.mountSmall(o.SmallDisks)
	t.Cleanup(r.close)
	return r
}

func (o *Options) counts() map[string]int {
	return map[string]int{
		Etcd: max(o.Etcds, 1), Controller: orDefault(o.Controllers, 3), Broker: orDefault(o.Brokers, 3),
		Coordinator: max(o.Coordinators, 1), Gateway: max(o.Gateways, 1),
	}
}

func orDefault(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}

func (r *Rig) plan(o *Options) {
	r.t.Helper()
	counts := o.counts()
	var etcds, controllers, cluster []string
	at := func(host string, block, n int) string {
		return net.JoinHostPort(host, strconv.Itoa(r.PortBase+block+n-1))
	}
	for _, kind := range kinds {
		l := layout[kind]
		for n := 1; n <= counts[kind]; n++ {
			host := fmt.Sprintf("127.0.%d.%d", l.octet, n)
			s := &Spec{Kind: kind, N: n, Name: fmt.Sprintf("%s-%d", kind, n)}
			s.Dir = filepath.Join(r.Data, s.Name)
			s.Log = filepath.Join(r.Data, "log", s.Name+".log")
			r.Net.Host(host, s.Name)
			listen, advertised := at(host, l.ports, n), at("127.0.0.1", l.ports, n)
			r.endpoints[s.Name] = r.proxy(s.Name, advertised, listen)
			if kind == Etcd {
				peer, known := at(host, etcdPeers, n), at("127.0.0.1", etcdPeers, n)
				r.peers[s.Name] = r.proxy(s.Name, known, peer)
				s.Settings = map[string]string{"name": s.Name, "dir": s.Dir, "listen": listen, "peer": peer, "source": host}
				etcds = append(etcds, advertised)
				cluster = append(cluster, s.Name+"=http://"+known)
			} else {
				s.Settings = map[string]string{
					"node.id": strconv.Itoa(n), "listen": listen, "advertised.address": advertised,
					"dial.source.address": host, "ops.listen": at(host, l.ops, n),
				}
			}
			if kind == Controller {
				controllers = append(controllers, advertised)
			}
			if kind == Broker {
				s.Settings["log.dirs"] = s.Dir
			}
			r.specs = append(r.specs, s)
		}
	}
	for _, s := range r.specs {
		if s.Kind == Etcd {
			s.Settings["initial-cluster"] = strings.Join(cluster, ",")
			continue
		}
		s.Settings["etcd.endpoints"] = strings.Join(etcds, ",")
		s.Settings["controller.addresses"] = strings.Join(controllers, ",")
	}
	for _, text := range o.Set {
		r.set(text)
	}
}

func (r *Rig) set(text string) {
	r.t.Helper()
	name, value, _ := strings.Cut(text, "=")
	kind, key, _ := strings.Cut(name, ".")
	only := 0
	if number, rest, ok := strings.Cut(key, "."); ok {
		if n, err := strconv.Atoi(number); err == nil {
			only, key = n, rest
		}
	}
	found := false
	for _, s := range r.specs {
		if s.Kind == kind && (only == 0 || s.N == only) {
			s.Settings[key], found = value, true
		}
	}
	if !found {
		r.t.Fatalf("the setting %q is of no process of this mesh", text)
	}
}

// Set changes a setting of a process for its next life.
func (r *Rig) Set(name, key, value string) {
	r.t.Helper()
	r.spec(name).Settings[key] = value
}

func (r *Rig) spec(name string) *Spec {
	r.t.Helper()
	for _, s := range r.specs {
		if s.Name == name {
			return s
		}
	}
	r.t.Fatalf("there is no %s in this mesh", name)
	return nil
}

// Names lists the processes of some kinds, or all, in the order of starting.
func (r *Rig) Names(of ...string) []string {
	var names []string
	for _, s := range r.specs {
		if len(of) == 0 || slices.Contains(of, s.Kind) {
			names = append(names, s.Name)
		}
	}
	return names
}

// Dir is the data folder of a process.
func (r *Rig) Dir(name string) string { r.t.Helper(); return r.spec(name).Dir }

// Running reports whether a process has been started and has not ended.
func (r *Rig) Running(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lives[name] != nil
}

// Launch starts processes, all at once, and does not wait.
func (r *Rig) Launch(names ...string) {
	r.t.Helper()
	for _, name := range names {
		s := r.spec(name)
		if r.Running(name) {
			r.t.Fatalf("%s runs already", name)
		}
		for _, dir := range []string{filepath.Dir(s.Dir), filepath.Dir(s.Log)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				r.t.Fatal(err)
			}
		}
		start := r.start
		if s.Kind == Etcd {
			start = r.spawn.process
		}
		r.Net.Revive(name)
		r.endpoints[name].Up()
		if peer := r.peers[name]; peer != nil {
			peer.Up()
		}
		life, err := start(s)
		if err != nil {
			r.t.Fatalf("start %s: %v", name, err)
		}
		r.mu.Lock()
		r.lives[name] = life
		r.mu.Unlock()
		r.watchers.Go(func() {
			<-life.Done()
			r.gone(name, life)
		})
	}
}

// gone notes the end of a life, once.
func (r *Rig) gone(name string, life Life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lives[name] == life {
		delete(r.lives, name)
		_ = r.endpoints[name].Down() // it is a listener's close
		if peer := r.peers[name]; peer != nil {
			_ = peer.Down()
		}
	}
}

// Up starts processes and waits until each says that it is ready.
func (r *Rig) Up(names ...string) {
	r.t.Helper()
	r.Launch(names...)
	for _, name := range names {
		r.AwaitUp(name, time.Minute)
	}
}

// UpAll starts everything that does not run, etcd first, and returns when etcd
// serves: the others are to find each other by themselves.
func (r *Rig) UpAll() {
	r.t.Helper()
	for _, kind := range kinds {
		for _, name := range r.Names(kind) {
			if !r.Running(name) {
				r.Launch(name)
			}
		}
		if kind == Etcd {
			for _, name := range r.Names(kind) {
				r.AwaitUp(name, time.Minute)
			}
		}
	}
}

// AwaitUp waits until a process says that it is ready; it fails the test if the
// process ends or the limit passes.
func (r *Rig) AwaitUp(name string, limit time.Duration) {
	r.t.Helper()
	mesh.Eventually(r.t, limit, name+" is ready", func() (bool, string) {
		if !r.Running(name) {
			r.t.Fatalf("%s ended while it was starting; its log ends:\n%s", name, r.LogTail(name, 3000))
		}
		err := r.Ready(name)
		return err == nil, fmt.Sprint(err)
	})
}

var opsClient = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// Ready asks a process whether it is ready, by its operations HTTP.
func (r *Rig) Ready(name string) error {
	s := r.spec(name)
	if s.Kind == Etcd {
		conn, err := net.DialTimeout("tcp", s.Settings["listen"], time.Second)
		if err != nil {
			return err
		}
		conn.Close()
		if text, err := os.ReadFile(s.Log + ".ready"); err != nil || len(text) == 0 {
			return errors.New("it does not serve yet")
		}
		return nil
	}
	response, err := opsClient.Get("http://" + s.Settings["ops.listen"] + "/readyz")
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", response.Status)
	}
	return nil
}

// Metrics is the text of a process's metrics; "" if it does not answer.
func (r *Rig) Metrics(ctx context.Context, name string) string {
	r.t.Helper()
	return httpText(ctx, "http://"+r.spec(name).Settings["ops.listen"]+"/metrics")
}

// WaitReady waits until every process that runs says that it is ready, and `leat
// cluster wait` that the mesh is: that alone knows nothing of a process that has not
// got as far as to register.
func (r *Rig) WaitReady(limit time.Duration) {
	r.t.Helper()
	for _, name := range r.Names() {
		if r.Running(name) {
			r.AwaitUp(name, limit)
		}
	}
	if res := r.Leat("cluster", "wait", "--timeout", limit.String()); res.Code != 0 {
		r.t.Fatalf("the mesh is not ready: %s", res)
	}
}

// close takes the mesh down and prints the logs of a failed test.
func (r *Rig) close() {
	r.Net.HealAll()
	var wait sync.WaitGroup
	for _, kind := range slices.Backward(kinds) {
		for _, name := range r.Names(kind) {
			if life := r.life(name); life != nil {
				wait.Go(func() {
					_ = life.Resume()
					if r.t.Failed() || kind == Etcd {
						life.Kill()
					} else if err := life.Terminate(time.Minute); err != nil {
						r.t.Errorf("%s did not stop in order: %v", name, err)
					}
				})
			}
		}
		wait.Wait()
	}
	r.watchers.Wait()
	if err := r.Net.Close(); err != nil {
		r.t.Error(err)
	}
	if r.t.Failed() {
		for _, name := range r.Names() {
			r.t.Logf("%s:\n%s", name, r.LogTail(name, 4000))
		}
	}
}

func (r *Rig) life(name string) Life {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lives[name]
}

// LogTail is the end of a process's log.
func (r *Rig) LogTail(name string, size int) string {
	text, err := os.ReadFile(r.spec(name).Log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-size):])
}

// Logs returns the log of each process by its name.
func (r *Rig) Logs() map[string]string {
	logs := map[string]string{}
	for _, s := range r.specs {
		if text, err := os.ReadFile(s.Log); err == nil {
			logs[s.Name] = string(text)
		}
	}
	return logs
}

// arguments are settings as flags, sorted.
func arguments(settings map[string]string) []string {
	var args []string
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+key+"="+settings[key])
	}
	return args
}
