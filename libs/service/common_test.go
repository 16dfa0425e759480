package service

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/config"
)

func good() *Common {
	c := &Common{Listen: "127.0.0.1:5331"}
	config.SetDefaults(c)
	return c
}

func TestValidate(t *testing.T) {
	if err := good().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	tests := map[string]struct {
		change func(*Common)
		want   string // "" if allowed
	}{
		"localhost":            {func(c *Common) { c.Listen = "localhost:1" }, ""},
		"ipv6 loopback":        {func(c *Common) { c.Listen = "[::1]:1" }, ""},
		"other loopback":       {func(c *Common) { c.Listen = "127.9.9.9:0" }, ""},
		"all addresses":        {func(c *Common) { c.Listen = ":5331" }, "listen: "},
		"said in words":        {func(c *Common) { c.Listen, c.AllowInsecure = ":5331", true }, ""},
		"given listener":       {func(c *Common) { c.Listen, c.Listener = "", stubListener{} }, ""},
		"no port":              {func(c *Common) { c.Listen = "127.0.0.1" }, "listen: "},
		"port too high":        {func(c *Common) { c.Listen = "127.0.0.1:65536" }, "65535"},
		"ops for all":          {func(c *Common) { c.OpsListen = "0.0.0.0:5380" }, "ops.listen: "},
		"ops without port":     {func(c *Common) { c.OpsListen = "localhost" }, "ops.listen: "},
		"advertised":           {func(c *Common) { c.AdvertisedAddress = "broker-1" }, "advertised.address"},
		"source by name":       {func(c *Common) { c.DialSource = "localhost" }, "dial.source.address"},
		"no etcd":              {func(c *Common) { c.EtcdEndpoints = nil }, "etcd.endpoints"},
		"prefix":               {func(c *Common) { c.EtcdPrefix = "leat/" }, "etcd.prefix"},
		"empty prefix":         {func(c *Common) { c.EtcdPrefix = "" }, "etcd.prefix"},
		"level":                {func(c *Common) { c.LogLevel = "loud" }, "log.level"},
		"format":               {func(c *Common) { c.LogFormat = "xml" }, "log.format"},
		"lease":                {func(c *Common) { c.LeaseTTL = 1 }, "lease.ttl"},
		"no time to stop":      {func(c *Common) { c.ShutdownTimeout = 0 }, "shutdown.timeout"},
		"controller":           {func(c *Common) { c.ControllerAddresses = []string{"x"} }, "controller.addresses"},
		"node id":              {func(c *Common) { c.NodeID = -1 }, "node.id"},
		"everything at once 1": {func(c *Common) { c.NodeID, c.LogLevel = -2, "x" }, "node.id"},
		"everything at once 2": {func(c *Common) { c.NodeID, c.LogLevel = -2, "x" }, "log.level"},
	}
	for name, tt := range tests {
		c := good()
		tt.change(c)
		err := c.Validate()
		if (tt.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// stubListener is bound to a wildcard address.
type stubListener struct{ net.Listener }

func (stubListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv6unspecified, Port: 77} }

func TestAdvertise(t *testing.T) {
	lis, err := Listen(&Common{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	_, port, _ := net.SplitHostPort(lis.Addr().String())
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		advertised string
		lis        net.Listener
		want       string
	}{
		{"", lis, lis.Addr().String()},
		{"broker-1.leat:5331", lis, "broker-1.leat:5331"},
		{"broker-1.leat:0", lis, "broker-1.leat:" + port},
		{"", stubListener{}, net.JoinHostPort(host, "77")},
	} {
		if got := (&Common{AdvertisedAddress: tt.advertised}).Advertise(tt.lis); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.advertised, got, tt.want)
		}
	}
}

func TestListen(t *testing.T) {
	var stub stubListener
	if lis, err := Listen(&Common{Listener: stub, Listen: "nonsense"}); err != nil || lis != stub {
		t.Errorf("the given listener is not used: %v, %v", lis, err)
	}
	var le *ListenError
	if _, err := Listen(&Common{Listen: "203.0.113.1:1"}); !errors.As(err, &le) || le.Setting != "listen" || !strings.Contains(err.Error(), "203.0.113.1:1") {
		t.Errorf("an address of another host: %v", err)
	}
}
