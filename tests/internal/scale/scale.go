package scale

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

// Scale is how much of a test is run.
type Scale struct {
	Full *bool // the full counts and lengths, which take long
	seed *uint64
}

// Register registers -full, which the text explains, and -seed.
func Register(full string) Scale {
	return Scale{
		Full: flag.Bool("full", false, full),
		seed: flag.Uint64("seed", 1, "the seed of random choices; 0 takes a fresh one"),
	}
}

// Main runs the tests and returns the exit code. More tests run beside each other than
// there are processors, unless -parallel says otherwise: most of their time is waiting.
func Main(m *testing.M) int {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	return m.Run()
}

// Count is how often something is repeated, or how much of it there is.
func (s Scale) Count(short, long int) int {
	if *s.Full {
		return long
	}
	return short
}

// Span is how long something takes.
func (s Scale) Span(short, long time.Duration) time.Duration {
	if *s.Full {
		return long
	}
	return short
}

// Random returns the choices of this run, and tells how to repeat them.
func (s Scale) Random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *s.seed
	if seed == 0 {
		seed = rand.Uint64N(1_000_000) + 1
	}
	t.Logf("-seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
