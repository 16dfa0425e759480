package replication

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/rig"
	"github.com/leat-io/leat/tests/internal/scale"
)

var forms = flag.String("forms", "processes,inprocess", "the forms in which tests run")

// How much is run: how often, for how long, and with which choices.
var (
	size   = scale.Register("run the full counts of faults, which take long")
	full   = size.Full
	count  = size.Count
	span   = size.Span
	random = size.Random
)

func TestMain(m *testing.M) { os.Exit(scale.Main(m)) }

// pause lets a fault last, or load go on.
func pause(d time.Duration) { <-time.After(d) }

// starter starts meshes in one of the forms.
type starter struct {
	t      *testing.T
	memory bool // in process, disks in memory
	disks  *disks
}

// inForms runs a test in both forms.
func inForms(t *testing.T, body func(t *testing.T, s *starter)) {
	t.Helper()
	for _, form := range strings.Split(*forms, ",") {
		switch form {
		case "processes":
			t.Run(form, func(t *testing.T) { body(t, processes(t)) })
		case "inprocess":
			t.Run(form, func(t *testing.T) { body(t, inProcess(t)) })
		default:
			t.Fatalf("-forms: there is no form %q", form)
		}
	}
}

// inProcess is the form in which disks can fail and lose power. It is called once
// in a test, as is processes: tests run beside each other, but for full counts.
func inProcess(t *testing.T) *starter {
	if !*full {
		t.Parallel()
	}
	return &starter{t: t, memory: true, disks: newDisks(t)}
}

// processes is the form of real processes.
func processes(t *testing.T) *starter {
	if !*full {
		t.Parallel()
	}
	return &starter{t: t}
}

// start starts a mesh and waits until it is ready.
func (s *starter) start(o rig.Options) *rig.Rig {
	s.t.Helper()
	r := s.plan(o)
	r.UpAll()
	r.WaitReady(time.Minute)
	return r
}

func (s *starter) plan(o rig.Options) *rig.Rig {
	s.t.Helper()
	if !*full { // most of the time goes into waiting for these
		o.Set = append([]string{"broker.lease.ttl=2s", "controller.lease.ttl=2s", "broker.replica.lag.time.max.ms=3000"}, o.Set...)
	}
	if s.memory {
		o.Start, o.Wipe, o.ReadFolder = s.disks.life, s.disks.wipe, s.disks.readFolder
	}
	began := time.Now()
	r := rig.New(s.t, o)
	s.t.Cleanup(func() { r.CheckLogs(time.Since(began)) })
	return r
}

// topic makes a topic of three replicas, two of which have to be in sync.
func topic(t *testing.T, r *rig.Rig, name string, partitions int, configs ...string) {
	t.Helper()
	args := []string{name, "--partitions", fmt.Sprint(partitions), "--replication-factor", "3", "--config", "min.insync.replicas=2"}
	for _, c := range configs {
		args = append(args, "--config", c)
	}
	r.CreateTopic(args...)
	r.WaitInSync(name, time.Minute)
}
