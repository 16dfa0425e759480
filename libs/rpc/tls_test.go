package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
)

// selfSigned makes a certificate for 127.0.0.1, and the pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker-1"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// Both sides with certificates talk; a client without one, without TLS, or
// without trust in the server is told so and nothing is done.
func TestMutualTLS(t *testing.T) {
	ctx := testContext(t)
	cert, pool := selfSigned(t)
	_, otherPool := selfSigned(t)
	_, addr := startServer(t, ServerConfig{TLS: &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}},
		&echoService{list: func(context.Context, *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
			return &brokerv1.ListOffsetsResponse{}, nil
		}})
	for name, tt := range map[string]struct {
		client *tls.Config
		ok     bool
	}{
		"mutual":      {&tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool}, true},
		"anonymous":   {&tls.Config{RootCAs: pool}, false},
		"distrustful": {&tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: otherPool}, false},
		"plain text":  {nil, false},
	} {
		_, err := brokerv1.NewLogServiceClient(dial(t, addr, DialConfig{TLS: tt.client})).ListOffsets(ctx, &brokerv1.ListOffsetsRequest{})
		if tt.ok != (err == nil) || (err != nil && !IsReason(err, unreachable)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
