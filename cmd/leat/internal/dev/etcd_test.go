package dev

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// runEtcds runs members at ports from base on until stop is called.
func runEtcds(t *testing.T, dir string, members, base int) (endpoints []string, stop func()) {
	t.Helper()
	o := defaults()
	o.Etcds, o.PortBase = members, base
	p, err := newPlan(&o, folder(dir), serviceKinds())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	ready := make(chan string, members)
	for _, in := range p.of(kindEtcd) {
		endpoints = append(endpoints, in.listen)
		wait.Go(func() {
			if err := RunEtcd(ctx, EtcdConfig{
				Name: in.name, Dir: filepath.Join(dir, in.name), Listen: in.listen, Peer: in.peer, InitialCluster: p.initialCluster(),
				Log: filepath.Join(dir, in.name+".log"), AddrFile: filepath.Join(dir, in.name+".addr"),
			}, func() { ready <- in.name }); err != nil {
				t.Errorf("%s: %v", in.name, err)
			}
		})
	}
	for range members {
		select {
		case <-ready:
		case <-time.After(30 * time.Second):
			cancel()
			wait.Wait()
			t.Fatalf("etcd does not start; %s", tail(filepath.Join(dir, "etcd-1.log"), 2000))
		}
	}
	return endpoints, func() {
		cancel()
		wait.Wait()
	}
}

// TestEtcdsStartAgainOnOtherPorts: etcd keeps the addresses of its members in its
// data, which would tie a folder to its first ports.
func TestEtcdsStartAgainOnOtherPorts(t *testing.T) {
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			dir := t.TempDir()
			for life := range 2 {
				endpoints, stop := runEtcds(t, dir, members, freePorts(t))
				client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				got, err := client.Get(ctx, "key")
				if err != nil || len(got.Kvs) != life {
					t.Errorf("life %d: %v, %v", life, got, err)
				}
				if _, err := client.Put(ctx, "key", "value"); err != nil {
					t.Errorf("life %d: %v", life, err)
				}
				if addr, err := filepath.Glob(filepath.Join(dir, "*.addr")); err != nil || len(addr) != members {
					t.Errorf("addr files %s", strings.Join(addr, ", "))
				}
				cancel()
				client.Close()
				stop()
			}
		})
	}
}
