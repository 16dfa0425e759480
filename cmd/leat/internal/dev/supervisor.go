package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// Times of the supervisor.
const (
	stopLimit  = 20 * time.Second // then a process is killed
	stillEvery = 10 * time.Second // between two lines about what is waited for
	dyingLimit = 2 * time.Second  // for the kernel to take back what a killed process held
)

// supervisor runs a planned mesh.
type supervisor struct {
	o       Options
	folder  folder
	plan    *plan
	starter starter
	units   map[string]*unit
	out     sync.Mutex
	watches sync.WaitGroup
}

// unit is an instance and its present life.
type unit struct {
	in *instance

	mu       sync.Mutex // held while it is started or stopped
	life     life       // nil before the first start and after a stop
	expected *bool      // of the life: its end is wanted
}

// Run runs a mesh until the interrupt, a failed start, or the end of ctx, which
// kills it.
func Run(ctx context.Context, o Options) (err error) {
	began := time.Now()
	kinds := serviceKinds()
	f, release, err := prepare(&o, kinds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	p, err := newPlan(&o, f, kinds)
	if err != nil {
		return err
	}
	crashed, err := f.cleanRun()
	if err := errors.Join(err, f.checkEtcds(o.Etcds), p.awaitPorts(crashed)); err != nil {
		return err
	}
	s := &supervisor{o: o, folder: f, plan: p, units: map[string]*unit{}}
	for _, in := range p.instances {
		s.units[in.name] = &unit{in: in}
	}
	if o.Processes {
		processes, err := newProcesses(f, o.BinDir, p)
		if err != nil {
			return err
		}
		defer processes.close()
		s.starter = processes
	} else {
		s.starter = &inProcess{folder: f, plan: p, kinds: kinds}
	}
	if err := writeWhole(f.pid("dev"), fmt.Sprintf("%d\n", os.Getpid())); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.forget("dev")) }()
	return s.run(ctx, began)
}

// prepare checks what can be checked before the folder is touched, and takes it.
func prepare(o *Options, kinds map[string]kind) (folder, func() error, error) {
	planned, err := folderOf(o.Data)
	if err != nil {
		return "", nil, err
	}
	if _, err := newPlan(o, planned, kinds); err != nil {
		return "", nil, err
	}
	return takeFolder(o.Data)
}

// checkEtcds refuses another number of etcds than the folder was made with.
func (f folder) checkEtcds(count int) error {
	members, err := filepath.Glob(f.instance("etcd-*/member"))
	if err != nil || len(members) == 0 || len(members) == count {
		return err
	}
	return exit.Usage(fmt.Sprintf("Start it with --etcds %d.", len(members)), "the data folder %s was made with %d etcds, and not %d", f, len(members), count)
}

func (s *supervisor) run(ctx context.Context, began time.Time) error {
	control, err := s.listenControl(ctx)
	if err != nil {
		return err
	}
	defer control.close()
	s.say("data folder: %s", s.folder)
	starting, cancel := context.WithCancel(ctx)
	defer cancel()
	s.watches.Go(func() {
		select {
		case <-s.o.Interrupt:
			cancel()
		case <-starting.Done():
		}
	})
	err = s.startAll(starting)
	interrupted := starting.Err() != nil
	if err == nil {
		s.sayReady(time.Since(began))
		select {
		case <-s.o.Interrupt:
			s.say("stopping; once more to kill")
		case <-ctx.Done():
		}
	} else if interrupted {
		s.say("stopping before the mesh was up")
		err = nil
	}
	cancel()
	control.close()
	s.stopAll(ctx)
	if ctx.Err() != nil {
		return exit.Silent(exit.Interrupted) // what runs in this process dies with it
	}
	s.watches.Wait()
	if err == nil {
		s.say("stopped")
	}
	return err
}

// startAll starts kind after kind, each when the one before serves. gateway-1 is
// the last: who finds it answering finds the others registered.
func (s *supervisor) startAll(ctx context.Context) error {
	for _, kind := range startOrder {
		stage := s.plan.of(kind)
		if kind == kindGateway {
			if err := s.startStage(ctx, stage[1:]); err != nil {
				return err
			}
			stage = stage[:1]
		}
		if err := s.startStage(ctx, stage); err != nil {
			return err
		}
	}
	return nil
}

func (s *supervisor) startStage(ctx context.Context, stage []*instance) error {
	var group errgroup.Group
	for _, in := range stage {
		group.Go(func() error {
			began := time.Now()
			if err := s.begin(ctx, s.units[in.name]); err != nil {
				return err
			}
			s.say("%-14s %-21s up after %v", in.name, in.listen, time.Since(began).Round(time.Millisecond))
			return nil
		})
	}
	return group.Wait()
}

// begin starts an instance that does not run, and waits until it serves. What
// is not ready when ctx ends goes on.
func (s *supervisor) begin(ctx context.Context, u *unit) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return s.beginLocked(ctx, u)
}

func (s *supervisor) beginLocked(ctx context.Context, u *unit) error {
	if u.running() {
		return exit.Failure("Use restart to start it anew.", "%s runs already (%s)", u.in.name, u.life.describe())
	}
	l, err := s.starter.start(u.in)
	if err != nil {
		return err
	}
	expected := new(bool)
	u.life, u.expected = l, expected
	starting := true
	s.watches.Go(func() {
		<-l.done()
		s.out.Lock()
		told := *expected || starting
		s.out.Unlock()
		if !told {
			s.say("%s (%s) ended by itself: %v\n  start it again with `%s dev start %s --data %s`",
				u.in.name, l.describe(), orEnded(l.err()), quoted(s.o.Leat), u.in.name, quoted(string(s.folder)))
		}
	})
	still := time.NewTicker(stillEvery)
	defer still.Stop()
	result := make(chan error, 1)
	go func() { result <- awaitReady(ctx, u.in, l) }()
	for {
		select {
		case err := <-result:
			if err == nil {
				s.out.Lock()
				starting = false
				s.out.Unlock()
			}
			return err
		case <-still.C:
			s.say("still waiting for %s (%s); its log is %s", u.in.name, l.describe(), s.folder.log(u.in.name))
		}
	}
}

func (u *unit) running() bool {
	if u.life == nil {
		return false
	}
	select {
	case <-u.life.done():
		return false
	default:
		return true
	}
}

// end stops an instance if it runs, and kills it if that takes too long.
func (s *supervisor) end(ctx context.Context, u *unit) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s.endLocked(ctx, u)
}

func (s *supervisor) endLocked(ctx context.Context, u *unit) {
	if u.life == nil {
		return
	}
	s.out.Lock()
	*u.expected = true
	s.out.Unlock()
	if u.running() {
		limited, cancel := context.WithTimeout(ctx, stopLimit)
		u.life.stop(limited)
		if limited.Err() != nil && s.o.Processes {
			s.say("%s was killed, because it did not stop in time", u.in.name)
		}
		cancel()
	}
	if killed := ctx.Err() != nil && !s.o.Processes; !killed {
		<-u.life.done()
	}
	u.life = nil
}

// stopAll stops kind after kind, in the opposite order of the start; when ctx
// ends, what is left is killed.
func (s *supervisor) stopAll(ctx context.Context) {
	kinds := slices.Clone(startOrder)
	slices.Reverse(kinds)
	for _, kind := range kinds {
		var group errgroup.Group
		if kind == kindEtcd {
			// A leading etcd hands over before it stops, and waits in vain for one that
			// stops too.
			group.SetLimit(1)
		}
		for _, in := range s.plan.of(kind) {
			group.Go(func() error {
				s.end(ctx, s.units[in.name])
				return nil
			})
		}
		_ = group.Wait()
	}
}

// act does what `leat dev restart|stop|start` asks for.
func (s *supervisor) act(ctx context.Context, verb, name string) error {
	u, ok := s.units[name]
	if !ok {
		var names []string
		for _, in := range s.plan.instances {
			names = append(names, in.name)
		}
		return exit.Usage("There are "+strings.Join(names, ", ")+".", "this mesh has no %q", name)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if ctx.Err() != nil {
		return exit.Failure("Start the mesh again.", "the mesh is stopping")
	}
	switch verb {
	case "stop":
		s.endLocked(ctx, u)
		return nil
	case "restart":
		s.endLocked(ctx, u)
		return s.beginLocked(ctx, u)
	case "start":
		return s.beginLocked(ctx, u)
	}
	return exit.Usage("Update the older of the two leat commands.", "the running leat dev does not know %q", verb)
}

// say prints a line.
func (s *supervisor) say(format string, args ...any) {
	s.out.Lock()
	defer s.out.Unlock()
	fmt.Fprintf(s.o.Out, format+"\n", args...)
}

func (s *supervisor) sayReady(after time.Duration) {
	gateway := s.plan.find("gateway-1").listen
	export := ""
	if gateway != "127.0.0.1:5328" {
		export = fmt.Sprintf("  export LEAT_GATEWAY=%s\n", gateway)
	}
	s.say(`
ready: the gateway is at %s (after %v)

Now type, in another terminal:
%s  %[4]s topic create hello --partitions 3
  echo 'hello, world' | %[4]s produce hello
  %[4]s consume hello --from-beginning
Ctrl-C here stops the mesh; %[4]s dev --data %[5]s starts it again.`, gateway, after.Round(10*time.Millisecond), export, quoted(s.o.Leat), quoted(string(s.folder)))
}

// quoted is a word as a shell takes it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%,=", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
