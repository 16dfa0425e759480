package dev

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// runEtcds runs members at ports from base on until stop is called.
func runEtcds(t *testing.T, dir string, members, base int, own bool) (endpoints []string, stop func()) {
	t.Helper()
	o := defaults()
	o.Etcds, o.PortBase, o.PerProcessIP = members, base, own
	p, err := newPlan(&o, folder(dir), serviceKinds())
	if err != nil {
		t.Fatal(err)
	}
	var stops []func()
	stop = func() {
		for _, s := range stops { // one by one, as Run does
			s()
		}
	}
	ready := make(chan string, members)
	for _, in := range p.of(kindEtcd) {
		endpoints = append(endpoints, in.listen)
		ctx, cancel := context.WithCancel(context.Background())
		var wait sync.WaitGroup
		stops = append(stops, func() { cancel(); wait.Wait() })
		wait.Go(func() {
			if err := RunEtcd(ctx, EtcdConfig{
				Name: in.name, Dir: filepath.Join(dir, in.name), Listen: in.listen, Peer: in.peer, InitialCluster: p.initialCluster(),
				Source: in.settings[etcdSource], Log: filepath.Join(dir, in.name+".log"), AddrFile: filepath.Join(dir, in.name+".addr"),
			}, func() { ready <- in.name }); err != nil {
				t.Errorf("%s: %v", in.name, err)
			}
		})
	}
	for range members {
		select {
		case <-ready:
		case <-time.After(patience):
			stop()
			t.Fatalf("etcd does not start; %s", tail(filepath.Join(dir, "etcd-1.log"), 2000))
		}
	}
	return endpoints, stop
}

// TestEtcdsStartAgainOnOtherPorts: etcd keeps the addresses of its members in its
// data, which would tie a folder to its first ports.
func TestEtcdsStartAgainOnOtherPorts(t *testing.T) {
	for _, c := range []struct {
		members int
		own     bool // addresses
	}{{1, false}, {3, false}, {1, true}, {3, true}} {
		members := c.members
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			if c.own && runtime.GOOS != "linux" {
				return // only Linux has all of 127.0.0.0/8
			}
			dir := t.TempDir()
			for life := range 2 {
				base := freePorts(t)
				endpoints, stop := runEtcds(t, dir, members, base, c.own)
				client, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				// A member that stands still for a second may cost the others their leader.
				var got *clientv3.GetResponse
				eventually(t, "an answer of etcd", func() bool { got, err = client.Get(ctx, "key"); return err == nil })
				if len(got.Kvs) != life {
					t.Errorf("life %d: %v", life, got)
				}
				eventually(t, "a write of etcd", func() bool { _, err := client.Put(ctx, "key", "value"); return err == nil })
				if addr, err := filepath.Glob(filepath.Join(dir, "*.addr")); err != nil || len(addr) != members {
					t.Errorf("addr files %s", strings.Join(addr, ", "))
				}
				cancel()
				client.Close()
				if c.own && c.members > 1 {
					eventually(t, "a connection between the members", func() bool { return checkSources(t, base) > 0 })
				}
				stop()
			}
		})
	}
}

// checkSources looks at the system's connections: those to the peer ports must
// leave from the members' own addresses. It returns how many there are.
func checkSources(t *testing.T, base int) (found int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != "01" { // established
			continue
		}
		var local, remote uint32
		var localPort, remotePort int
		if _, err := fmt.Sscanf(fields[1]+" "+fields[2], "%08X:%04X %08X:%04X", &local, &localPort, &remote, &remotePort); err != nil {
			t.Fatal(err)
		}
		if remotePort < base+etcdPeers || remotePort >= base+etcdPeers+3 {
			continue
		}
		found++
		if ip := fmt.Sprintf("%d.%d.%d", local&0xff, local>>8&0xff, local>>16&0xff); ip != "127.0.1" {
			t.Errorf("a member reaches its peer from %s.%d", ip, local>>24)
		}
	}
	return found
}
