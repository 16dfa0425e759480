package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/leat-io/leat/libs/rpc"
)

// Config configures a Client. Zero values mean the defaults stated.
type Config struct {
	// Bootstrap lists addresses of brokers or gateways, host:port; any that
	// answers tells the rest. Not used with Source.
	Bootstrap []string
	// Source tells where things are instead. The Client does not close it.
	Source MetadataSource
	// ClientID names the application in logs and metrics; at most 255 bytes.
	ClientID string
	// Conns are the process's own connections, which the Client does not close; nil:
	// it makes and closes its own. DialSource and TLS are theirs then.
	Conns *rpc.ConnPool
	// DialSource is the local address that connections are made from; empty: any.
	DialSource string
	// TLS secures connections; nil: plain text.
	TLS *tls.Config
	// TracerProvider makes spans; nil: none.
	TracerProvider trace.TracerProvider
	// Logger takes what goes wrong in the background; nil: nothing is logged.
	Logger *slog.Logger
	// RequestTimeout bounds one attempt of a unary call or the opening of a
	// stream; 0: 10 s.
	RequestTimeout time.Duration
	// RetryTimeout bounds all attempts of a question whose context has no deadline;
	// 0: 30 s.
	RetryTimeout time.Duration
	// RetryBackoff is the first wait before a retry, before jitter; 0: 20 ms.
	RetryBackoff time.Duration
	// RetryBackoffMax is the longest; 0: 1 s.
	RetryBackoffMax time.Duration
	// MetadataMaxAge is how old metadata may get before a source that polls asks
	// again by itself; 0: 1 min.
	MetadataMaxAge time.Duration
	// MaxInFlightPerStream is the most batches unanswered on one produce stream; the
	// broker may allow less; 0: 8.
	MaxInFlightPerStream int
}

// Validate joins everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Source == nil && len(c.Bootstrap) == 0 {
		errs = append(errs, errors.New("client: no address to begin with; set Bootstrap to the address of a broker or gateway, or give a Source"))
	}
	if len(c.ClientID) > 255 {
		errs = append(errs, fmt.Errorf("client: ClientID has %d bytes; use at most 255", len(c.ClientID)))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"RequestTimeout", c.RequestTimeout},
		{"RetryTimeout", c.RetryTimeout},
		{"RetryBackoff", c.RetryBackoff},
		{"RetryBackoffMax", c.RetryBackoffMax},
		{"MetadataMaxAge", c.MetadataMaxAge},
	} {
		if d.v < 0 {
			errs = append(errs, fmt.Errorf("client: %s is %v; it must not be negative", d.name, d.v))
		}
	}
	if c.MaxInFlightPerStream < 0 {
		errs = append(errs, fmt.Errorf("client: MaxInFlightPerStream is %d; it must not be negative", c.MaxInFlightPerStream))
	}
	return errors.Join(errs...)
}

// or returns v, or the default where v is the zero value.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (c Config) withDefaults() Config {
	c.RequestTimeout = or(c.RequestTimeout, 10*time.Second)
	c.RetryTimeout = or(c.RetryTimeout, 30*time.Second)
	c.RetryBackoff = or(c.RetryBackoff, 20*time.Millisecond)
	c.RetryBackoffMax = max(or(c.RetryBackoffMax, time.Second), c.RetryBackoff)
	c.MetadataMaxAge = or(c.MetadataMaxAge, time.Minute)
	c.MaxInFlightPerStream = or(c.MaxInFlightPerStream, 8)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// backoff is the wait after a number of failures in a row, from 1: doubling, with
// jitter over its upper half.
func (c *Config) backoff(failures int) time.Duration {
	d := c.RetryBackoff
	for i := 1; i < failures && d < c.RetryBackoffMax; i++ {
		d *= 2
	}
	d = min(d, c.RetryBackoffMax)
	return d/2 + rand.N(d/2+1)
}
