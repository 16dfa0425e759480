package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// etcdStopLimit bounds the farewell to clients and peers of a member.
const etcdStopLimit = time.Second

// member is a running etcd, in the form of embed or of sourcedEtcd.
type member interface {
	ready() <-chan struct{}
	stopped() <-chan struct{}
	failed() <-chan error
	close()
}

// embedded is etcd's own form of an etcd within a program.
type embedded struct{ e *embed.Etcd }

func (m embedded) ready() <-chan struct{}   { return m.e.Server.ReadyNotify() }
func (m embedded) stopped() <-chan struct{} { return m.e.Server.StopNotify() }
func (m embedded) failed() <-chan error     { return m.e.Err() }
func (m embedded) close()                   { m.e.Close() }

func startEmbedded(cfg *embed.Config) (member, error) {
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	return embedded{e}, nil
}

// sourcedEtcd is an etcd whose connections to its peers leave from an address of
// its own. The package embed sets such an address only for one that is not a
// loopback address, which here they all are; so this puts the same parts together.
type sourcedEtcd struct {
	server *etcdserver.EtcdServer
	peers  *http.Server
	grpc   *grpc.Server
	errs   chan error
	served chan struct{} // both servers have ended
}

func (m *sourcedEtcd) ready() <-chan struct{}   { return m.server.ReadyNotify() }
func (m *sourcedEtcd) stopped() <-chan struct{} { return m.server.StopNotify() }
func (m *sourcedEtcd) failed() <-chan error     { return m.errs }

func startSourced(cfg *embed.Config, source string) (_ member, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	urls, token, err := cfg.PeerURLsMapAndToken("etcd")
	if err != nil {
		return nil, err
	}
	peerListener, err := net.Listen("tcp", cfg.ListenPeerUrls[0].Host)
	if err != nil {
		return nil, err
	}
	clientListener, err := net.Listen("tcp", cfg.ListenClientUrls[0].Host)
	if err != nil {
		return nil, errors.Join(err, peerListener.Close())
	}
	tls := cfg.PeerTLSInfo
	tls.LocalAddr = source
	server, err := etcdserver.NewServer(config.ServerConfig{
		Name: cfg.Name, ClientURLs: cfg.AdvertiseClientUrls, PeerURLs: cfg.AdvertisePeerUrls, DataDir: cfg.Dir,
		SnapshotCount: cfg.SnapshotCount, SnapshotCatchUpEntries: cfg.SnapshotCatchUpEntries,
		MaxSnapFiles: cfg.MaxSnapFiles, MaxWALFiles: cfg.MaxWalFiles,
		InitialPeerURLsMap: urls, InitialClusterToken: token, NewCluster: cfg.IsNewCluster(),
		PeerTLSInfo: tls, LocalAddress: source,
		TickMs: cfg.TickMs, ElectionTicks: cfg.ElectionTicks(), InitialElectionTickAdvance: cfg.InitialElectionTickAdvance, PreVote: cfg.PreVote,
		AutoCompactionRetention: time.Hour, AutoCompactionMode: cfg.AutoCompactionMode,
		QuotaBackendBytes: cfg.QuotaBackendBytes, MaxTxnOps: cfg.MaxTxnOps, MaxRequestBytes: cfg.MaxRequestBytes, MaxConcurrentStreams: cfg.MaxConcurrentStreams,
		StrictReconfigCheck: cfg.StrictReconfigCheck, AuthToken: cfg.AuthToken, BcryptCost: cfg.BcryptCost, TokenTTL: cfg.AuthTokenTTL,
		CompactHashCheckTime: cfg.CompactHashCheckTime, CompactionBatchLimit: cfg.CompactionBatchLimit, WatchProgressNotifyInterval: cfg.WatchProgressNotifyInterval,
		DowngradeCheckTime: cfg.DowngradeCheckTime, WarningApplyDuration: cfg.WarningApplyDuration, WarningUnaryRequestDuration: cfg.WarningUnaryRequestDuration,
		MaxLearners: cfg.MaxLearners, V2Deprecation: cfg.V2DeprecationEffective(), ServerFeatureGate: cfg.ServerFeatureGate,
		Logger: cfg.GetLogger(), Metrics: cfg.Metrics,
	})
	if err != nil {
		return nil, errors.Join(err, peerListener.Close(), clientListener.Close())
	}
	m := &sourcedEtcd{
		server: server, errs: make(chan error, 2), served: make(chan struct{}),
		peers: &http.Server{Handler: etcdhttp.NewPeerHandler(cfg.GetLogger(), server), ReadTimeout: 5 * time.Minute},
	}
	server.Start()
	m.grpc = v3rpc.Server(server, nil, nil, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: cfg.GRPCKeepAliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: cfg.GRPCKeepAliveInterval, Timeout: cfg.GRPCKeepAliveTimeout}))
	go m.serve(peerListener, clientListener)
	return m, nil
}

// serve serves the peers at once and clients when the server is ready.
func (m *sourcedEtcd) serve(peers, clients net.Listener) {
	defer close(m.served)
	done := make(chan error, 1)
	go func() { done <- m.peers.Serve(peers) }()
	select {
	case <-m.server.ReadyNotify():
		if err := m.grpc.Serve(clients); err != nil {
			m.errs <- fmt.Errorf("serve clients: %w", err)
		}
	case <-m.server.StopNotify():
	}
	_ = clients.Close() // most often closed already
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		m.errs <- fmt.Errorf("serve peers: %w", err)
	}
}

// close ends clients, then the server, then peers, as embed does.
func (m *sourcedEtcd) close() {
	stopped := make(chan struct{})
	go func() {
		m.grpc.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(etcdStopLimit):
		m.grpc.Stop()
		<-stopped
	}
	m.server.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), etcdStopLimit)
	defer cancel()
	if m.peers.Shutdown(ctx) != nil {
		_ = m.peers.Close()
	}
	<-m.served
}
