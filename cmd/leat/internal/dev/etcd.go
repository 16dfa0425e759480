package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"
)

// EtcdConfig is one member.
type EtcdConfig struct {
	Name           string
	Dir            string
	Listen, Peer   string // host:port where clients and the other members are listened to
	InitialCluster string // name=http://host:port of all members, as they reach each other, with commas between
	Source         string // IP address to reach the other members from; "" is the system's choice
	Log            string // a file, or stderr
	AddrFile       string // gets Listen once the member serves; "" for none
}

// RunEtcd runs one etcd member until the context ends, and calls ready once it
// serves.
func RunEtcd(ctx context.Context, c EtcdConfig, ready func()) error {
	cfg, err := c.embedded()
	if err != nil {
		return err
	}
	if err := movePeers(c.Dir, c.InitialCluster); err != nil {
		return fmt.Errorf("tell %s the new addresses of its peers: %w", c.Name, err)
	}
	var m member
	if c.Source == "" {
		m, err = startEmbedded(cfg)
	} else {
		m, err = startSourced(cfg, c.Source)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer m.close()
	select {
	case <-m.ready():
	case err := <-m.failed():
		return fmt.Errorf("%s: %w", c.Name, err)
	case <-m.stopped():
		return fmt.Errorf("%s stopped while it was starting; its log tells why", c.Name)
	case <-ctx.Done():
		return nil
	}
	if c.AddrFile != "" {
		if err := writeWhole(c.AddrFile, c.Listen+"\n"); err != nil {
			return err
		}
	}
	ready()
	select {
	case err := <-m.failed():
		return fmt.Errorf("%s: %w", c.Name, err)
	case <-m.stopped():
		return fmt.Errorf("%s stopped by itself; its log tells why", c.Name)
	case <-ctx.Done():
		if c.AddrFile != "" {
			return os.Remove(c.AddrFile)
		}
		return nil
	}
}

func (c *EtcdConfig) embedded() (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = c.Name, c.Dir
	cfg.InitialCluster, cfg.InitialClusterToken = c.InitialCluster, "leat-dev"
	client, err := url.Parse("http://" + c.Listen)
	if err != nil {
		return nil, err
	}
	peer, err := url.Parse("http://" + c.Peer)
	if err != nil {
		return nil, err
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	if known, ok := peersOf(c.InitialCluster)[c.Name]; ok {
		advertised, err := url.Parse(known)
		if err != nil {
			return nil, err
		}
		cfg.AdvertisePeerUrls = []url.URL{*advertised}
	}
	cfg.Logger, cfg.LogLevel, cfg.LogOutputs = "zap", "warn", []string{c.Log}
	cfg.EnableGRPCGateway = false
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "periodic", "1h"
	if !strings.Contains(c.InitialCluster, ",") {
		cfg.TickMs, cfg.ElectionMs = 50, 500 // nobody to lose an election to: start sooner
	}
	return cfg, nil
}

// peersOf is the address of each member by its name.
func peersOf(initialCluster string) map[string]string {
	peers := map[string]string{}
	for entry := range strings.SplitSeq(initialCluster, ",") {
		name, peer, _ := strings.Cut(entry, "=")
		peers[name] = peer
	}
	return peers
}

// etcdMember is how etcd keeps a member in its membership bucket.
type etcdMember struct {
	ID         json.RawMessage `json:"id"`
	PeerURLs   []string        `json:"peerURLs"`
	IsLearner  bool            `json:"isLearner,omitempty"`
	Name       string          `json:"name,omitempty"`
	ClientURLs []string        `json:"clientURLs,omitempty"`
}

// movePeers writes the present addresses of all members into a stopped member's
// own record of them. etcd itself takes addresses from its flags only when it
// starts for the first time; without this, a mesh of several etcds could not
// start again on other ports.
func movePeers(dir, initialCluster string) error {
	db := filepath.Join(dir, "member", "snap", "db")
	if _, err := os.Stat(db); errors.Is(err, os.ErrNotExist) {
		return nil // it has never run
	}
	peers := peersOf(initialCluster)
	b, err := bbolt.Open(db, 0o600, &bbolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	err = b.Update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte("members"))
		if bucket == nil {
			return nil
		}
		moved := map[string][]byte{}
		err := bucket.ForEach(func(k, v []byte) error {
			var m etcdMember
			if err := json.Unmarshal(v, &m); err != nil {
				return fmt.Errorf("member %s: %w", k, err)
			}
			want, ok := peers[m.Name]
			if !ok || slices.Equal(m.PeerURLs, []string{want}) {
				return nil
			}
			m.PeerURLs = []string{want}
			text, err := json.Marshal(m)
			moved[string(k)] = text
			return err
		})
		for k, v := range moved {
			err = errors.Join(err, bucket.Put([]byte(k), v))
		}
		return err
	})
	return errors.Join(err, b.Close())
}
