package dev

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// The kinds of processes, in the order in which they start.
const (
	kindEtcd        = "etcd"
	kindController  = "controller"
	kindCoordinator = "coordinator"
	kindBroker      = "broker"
	kindGateway     = "gateway"
)

// startOrder is also, backwards, the order of stopping.
var startOrder = []string{kindEtcd, kindController, kindBroker, kindCoordinator, kindGateway}

// DefaultPortBase is where the blocks of ports begin; gateway-1 is there.
const DefaultPortBase = 5328

// Each kind has a block of ports, at this distance from the base.
const (
	portBlock  = 20
	portsInAll = 200
	etcdPeers  = 5 * portBlock // the second block of etcd
)

var (
	portBlocks = map[string]int{kindGateway: 0, kindController: 20, kindCoordinator: 40, kindBroker: 60, kindEtcd: 80}
	opsBlocks  = map[string]int{kindGateway: 120, kindController: 140, kindCoordinator: 160, kindBroker: 180}
	// ipOctets is the third number of a process's own address: 127.0.<octet>.<n>.
	ipOctets = map[string]int{kindEtcd: 1, kindController: 2, kindCoordinator: 3, kindBroker: 4, kindGateway: 5}
)

// etcdSource is the one setting of etcd in the plan: EtcdConfig.Source.
const etcdSource = "source"

// Options say what mesh to run.
type Options struct {
	// Data is the folder of the mesh; empty is a fresh temporary one.
	Data string
	// How many of each kind.
	Brokers, Controllers, Coordinators, Gateways, Etcds int
	// Processes makes each service a process of its own.
	Processes bool
	// PortBase is the first port.
	PortBase int
	// PerProcessIP gives each process an address of its own.
	PerProcessIP bool
	// Set are settings, service[.n].key=value.
	Set []string
	// BinDir holds the binaries of the services; empty is where leat itself is.
	BinDir string
	// Out is told about the progress.
	Out io.Writer
	// Leat is how this command is called, for what to type next.
	Leat string
	// Interrupt stops the mesh in order.
	Interrupt <-chan struct{}
}

// instance is one process of the plan.
type instance struct {
	kind     string
	n        int
	name     string // kind-n
	host     string // it listens on and dials from
	listen   string // host:port; of etcd that of its clients
	peer     string // of etcd: host:port for the other members
	ops      string // host:port of the operations HTTP; "" for none
	settings map[string]string
}

// plan is a mesh before it starts.
type plan struct {
	instances []*instance
}

func (o *Options) counts() map[string]int {
	return map[string]int{
		kindEtcd: o.Etcds, kindController: o.Controllers, kindCoordinator: o.Coordinators, kindBroker: o.Brokers, kindGateway: o.Gateways,
	}
}

// newPlan lays out the mesh in the folder. Its errors are wrong usage.
func newPlan(o *Options, f folder, kinds map[string]kind) (*plan, error) {
	if o.PortBase < 1 || o.PortBase > 65535-portsInAll {
		return nil, exit.Usage(fmt.Sprintf("Choose --port-base from 1 to %d; the mesh uses %d ports from there.", 65535-portsInAll, portsInAll), "--port-base is %d", o.PortBase)
	}
	p := &plan{}
	for _, kind := range startOrder {
		count := o.counts()[kind]
		if count < 1 || count > portBlock {
			return nil, exit.Usage("A mesh needs at least one of each kind.", "--%ss is %d; it must be from 1 to %d", kind, count, portBlock)
		}
		for n := 1; n <= count; n++ {
			p.instances = append(p.instances, newInstance(o, f, kind, n))
		}
	}
	p.link(o)
	for _, s := range o.Set {
		if err := p.set(s, kinds); err != nil {
			return nil, err
		}
	}
	return p, p.check(kinds)
}

func newInstance(o *Options, f folder, kind string, n int) *instance {
	in := &instance{kind: kind, n: n, name: fmt.Sprintf("%s-%d", kind, n), host: "127.0.0.1", settings: map[string]string{}}
	if o.PerProcessIP {
		in.host = fmt.Sprintf("127.0.%d.%d", ipOctets[kind], n)
	}
	at := func(block int) string { return net.JoinHostPort(in.host, strconv.Itoa(o.PortBase+block+n-1)) }
	in.listen = at(portBlocks[kind])
	if kind == kindEtcd {
		in.peer = at(etcdPeers)
		if o.PerProcessIP {
			in.settings[etcdSource] = in.host
		}
		return in
	}
	in.ops = at(opsBlocks[kind])
	in.settings["node.id"] = strconv.Itoa(n)
	in.settings["listen"] = in.listen
	in.settings["ops.listen"] = in.ops
	if o.PerProcessIP {
		in.settings["dial.source.address"] = in.host
	}
	if kind == kindBroker {
		in.settings["log.dirs"] = f.instance(in.name)
	}
	if o.Processes {
		in.settings["addr.file"] = f.addr(in.name)
	}
	return in
}

// link tells the services where etcd and the controllers are.
func (p *plan) link(o *Options) {
	var etcds, controllers []string
	for _, in := range p.instances {
		switch in.kind {
		case kindEtcd:
			etcds = append(etcds, in.listen)
		case kindController:
			controllers = append(controllers, in.listen)
		}
	}
	for _, in := range p.instances {
		if in.kind != kindEtcd {
			in.settings["etcd.endpoints"] = strings.Join(etcds, ",")
			in.settings["controller.addresses"] = strings.Join(controllers, ",")
		}
	}
}

// ownSettings are what dev decides, and would not work otherwise.
var ownSettings = []string{"node.id", "addr.file", "etcd.endpoints", "etcd.prefix", "controller.addresses", "dial.source.address"}

// set applies a --set service[.n].key=value.
func (p *plan) set(text string, kinds map[string]kind) error {
	const form = "Write --set service.key=value or service.n.key=value, for example broker.2.log.level=debug."
	name, value, ok := strings.Cut(text, "=")
	service, key, ok2 := strings.Cut(name, ".")
	if !ok || !ok2 || key == "" {
		return exit.Usage(form, "--set %q is not service[.n].key=value", text)
	}
	k, ok := kinds[service]
	if !ok {
		return exit.Usage(form, "--set %q names the service %q; there are broker, controller, coordinator and gateway", text, service)
	}
	only := 0
	if number, rest, ok := strings.Cut(key, "."); ok {
		if n, err := strconv.Atoi(number); err == nil {
			only, key = n, rest
		}
	}
	if slices.Contains(ownSettings, key) {
		return exit.Usage("Run the services one by one if you need that.", "--set %q: leat dev decides %s itself", text, key)
	}
	if err := k.check(map[string]string{key: value}); err != nil {
		return exit.Usage(fmt.Sprintf("See the settings with `%s --help`.", service), "--set %q: %w", text, err)
	}
	found := false
	for _, in := range p.instances {
		if in.kind != service || only != 0 && in.n != only {
			continue
		}
		found = true
		in.settings[key] = value
		switch key {
		case "listen":
			in.listen = value
		case "ops.listen":
			in.ops = value
		}
	}
	if !found {
		return exit.Usage("Instances count from 1.", "--set %q: there is no %s-%d in this mesh", text, service, only)
	}
	return nil
}

// check has each service look at its settings as a whole.
func (p *plan) check(kinds map[string]kind) error {
	for _, in := range p.instances {
		if k, ok := kinds[in.kind]; ok {
			if err := k.validate(in.settings); err != nil {
				return exit.Usage("Change the --set that it comes from.", "%s: %w", in.name, err)
			}
		}
	}
	return nil
}

func (p *plan) of(kind string) []*instance {
	var list []*instance
	for _, in := range p.instances {
		if in.kind == kind {
			list = append(list, in)
		}
	}
	return list
}

func (p *plan) find(name string) *instance {
	for _, in := range p.instances {
		if in.name == name {
			return in
		}
	}
	return nil
}

// arguments are the settings as flags of the service's binary.
func (in *instance) arguments() []string {
	keys := make([]string, 0, len(in.settings))
	for k := range in.settings {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	args := make([]string, 0, len(keys))
	for _, k := range keys {
		args = append(args, "--"+k+"="+in.settings[k])
	}
	return args
}

// initialCluster is the list of members as etcd wants it.
func (p *plan) initialCluster() string {
	var members []string
	for _, in := range p.of(kindEtcd) {
		members = append(members, in.name+"=http://"+in.peer)
	}
	return strings.Join(members, ",")
}

// awaitPorts is checkPorts; after a crash it gives the ports of the processes
// that were killed a moment to come free.
func (p *plan) awaitPorts(crashed bool) error {
	err := p.checkPorts()
	for deadline := time.Now().Add(dyingLimit); err != nil && crashed && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
		err = p.checkPorts()
	}
	return err
}

// checkPorts finds out which addresses are taken, before anything starts.
func (p *plan) checkPorts() error {
	var taken []string
	for _, in := range slices.Backward(p.instances) { // gateways, which people know, first
		for _, a := range []struct{ addr, owner string }{
			{in.listen, in.kind + "." + strconv.Itoa(in.n) + ".listen"},
			{in.ops, in.kind + "." + strconv.Itoa(in.n) + ".ops.listen"},
			{in.peer, in.name + "'s peer address"},
		} {
			if a.addr == "" {
				continue
			}
			l, err := net.Listen("tcp", a.addr)
			if err == nil {
				err = l.Close()
			}
			if err != nil {
				host, port, _ := net.SplitHostPort(a.addr)
				taken = append(taken, fmt.Sprintf("port %s on %s, wanted by %s (setting %s), is not free: %v", port, host, in.name, a.owner, cause(err)))
			}
		}
	}
	if len(taken) == 0 {
		return nil
	}
	more := ""
	if len(taken) > 3 {
		more = fmt.Sprintf(", and %d more", len(taken)-3)
		taken = taken[:3]
	}
	return exit.Failure("Stop what uses it, or choose another block of ports with --port-base.", "%s%s", strings.Join(taken, "; "), more)
}

// cause is the innermost text of a network error, which says enough.
func cause(err error) error {
	if op, ok := err.(*net.OpError); ok && op.Err != nil {
		return op.Err
	}
	return err
}

// folderOf is the absolute form of a data folder.
func folderOf(path string) (folder, error) {
	abs, err := filepath.Abs(path)
	return folder(abs), err
}
