package dev

import (
	"os"
	"strings"
	"testing"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

func defaults() Options {
	return Options{Brokers: 3, Controllers: 1, Coordinators: 1, Gateways: 1, Etcds: 1, PortBase: DefaultPortBase}
}

func TestPlanAddresses(t *testing.T) {
	o := defaults()
	o.Etcds, o.Gateways = 3, 2
	p, err := newPlan(&o, "/d", serviceKinds())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][3]string{
		"gateway-1":     {"127.0.0.1:5328", "127.0.0.1:5448", ""},
		"gateway-2":     {"127.0.0.1:5329", "127.0.0.1:5449", ""},
		"controller-1":  {"127.0.0.1:5348", "127.0.0.1:5468", ""},
		"coordinator-1": {"127.0.0.1:5368", "127.0.0.1:5488", ""},
		"broker-3":      {"127.0.0.1:5390", "127.0.0.1:5510", ""},
		"etcd-2":        {"127.0.0.1:5409", "", "127.0.0.1:5429"},
	} {
		in := p.find(name)
		if in == nil || in.listen != want[0] || in.ops != want[1] || in.peer != want[2] {
			t.Errorf("%s: %+v", name, in)
		}
	}
	b := p.find("broker-3").settings
	if b["node.id"] != "3" || b["log.dirs"] != "/d/broker-3" || b["etcd.endpoints"] != "127.0.0.1:5408,127.0.0.1:5409,127.0.0.1:5410" ||
		b["controller.addresses"] != "127.0.0.1:5348" || b["addr.file"] != "" || b["dial.source.address"] != "" {
		t.Errorf("broker-3: %v", b)
	}
	if got := p.initialCluster(); got != "etcd-1=http://127.0.0.1:5428,etcd-2=http://127.0.0.1:5429,etcd-3=http://127.0.0.1:5430" {
		t.Errorf("initial cluster %s", got)
	}
	seen := map[string]string{}
	for _, in := range p.instances {
		for _, addr := range []string{in.listen, in.ops, in.peer} {
			if other, taken := seen[addr]; taken && addr != "" {
				t.Errorf("%s and %s share %s", in.name, other, addr)
			}
			seen[addr] = in.name
		}
	}
}

func TestPlanPerProcessIP(t *testing.T) {
	o := defaults()
	o.PerProcessIP, o.Processes = true, true
	p, err := newPlan(&o, "/d", serviceKinds())
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]bool{}
	for _, in := range p.instances {
		if hosts[in.host] || !strings.HasPrefix(in.listen, in.host+":") {
			t.Errorf("%s: host %s, listen %s", in.name, in.host, in.listen)
		}
		hosts[in.host] = true
		if in.kind != kindEtcd && in.settings["dial.source.address"] != in.host {
			t.Errorf("%s dials from %s", in.name, in.settings["dial.source.address"])
		}
	}
	if b := p.find("broker-2"); b.host != "127.0.4.2" || b.settings["addr.file"] != "/d/run/broker-2.addr" {
		t.Errorf("broker-2: %+v", b)
	}
}

func TestPlanSet(t *testing.T) {
	for _, c := range []struct {
		set  string
		want string // of the error; "" is none
	}{
		{"broker.lease.ttl=3s", ""},
		{"broker.2.rack=b", ""},
		{"gateway.1.listen=127.0.0.1:9999", ""},
		{"broker", "is not service[.n].key=value"},
		{"broker=3", "is not service[.n].key=value"},
		{"brocker.rack=b", `names the service "brocker"`},
		{"etcd.x=b", `names the service "etcd"`},
		{"broker.9.rack=b", "there is no broker-9"},
		{"broker.rak=b", "rack"},
		{"broker.lease.ttl=soon", "lease.ttl"},
		{"broker.node.id=4", "decides node.id itself"},
		{"broker.lease.ttl=1ms", "lease.ttl"},
		{"gateway.listen=0.0.0.0:1", "allow.insecure"},
	} {
		o := defaults()
		o.Set = []string{c.set}
		p, err := newPlan(&o, "/d", serviceKinds())
		if c.want == "" {
			if err != nil {
				t.Errorf("--set %s: %v", c.set, err)
			}
			continue
		}
		if exit.CodeOf(err) != exit.Wrong || !strings.Contains(err.Error(), c.want) {
			t.Errorf("--set %s: %v; want %q", c.set, err, c.want)
		}
		_ = p
	}
	o := defaults()
	o.Set = []string{"broker.rack=a", "broker.2.rack=b", "gateway.listen=127.0.0.1:9999"}
	p, err := newPlan(&o, "/d", serviceKinds())
	if err != nil {
		t.Fatal(err)
	}
	if a, b := p.find("broker-1").settings["rack"], p.find("broker-2").settings["rack"]; a != "a" || b != "b" || p.find("gateway-1").listen != "127.0.0.1:9999" {
		t.Errorf("racks %s and %s, gateway at %s", a, b, p.find("gateway-1").listen)
	}
}

func TestPlanCounts(t *testing.T) {
	for _, spoil := range []func(*Options){
		func(o *Options) { o.Brokers = 0 }, func(o *Options) { o.Gateways = 21 }, func(o *Options) { o.Etcds = -1 },
		func(o *Options) { o.PortBase = 0 }, func(o *Options) { o.PortBase = 65400 },
	} {
		o := defaults()
		spoil(&o)
		if _, err := newPlan(&o, "/d", serviceKinds()); exit.CodeOf(err) != exit.Wrong {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestNumberOfEtcdsIsFixedForAFolder(t *testing.T) {
	f := folder(t.TempDir())
	if err := f.checkEtcds(3); err != nil {
		t.Errorf("a fresh folder: %v", err)
	}
	if err := os.MkdirAll(f.instance("etcd-1/member"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.checkEtcds(1); err != nil {
		t.Error(err)
	}
	if err := f.checkEtcds(3); exit.CodeOf(err) != exit.Wrong {
		t.Errorf("another number: %v", err)
	}
}

// Commands that are told to people can be pasted into a shell.
func TestQuoted(t *testing.T) {
	for word, want := range map[string]string{
		"bin/leat": "bin/leat", "/tmp/a b": "'/tmp/a b'", "it's": `'it'\''s'`, "": "''", "$HOME": "'$HOME'",
	} {
		if got := quoted(word); got != want {
			t.Errorf("%s is quoted as %s", word, got)
		}
	}
}
