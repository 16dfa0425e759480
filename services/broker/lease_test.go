package broker

import (
	"testing"
	"time"
)

// A leader that is alone in the in-sync set of a topic with unclean elections commits
// while its lease holds. A new lease after a lost one says nothing before the metadata
// has come to the new registration: it may show another leader.
func TestALeaseCountsOnceTheMetadataHasReachedItsRegistration(t *testing.T) {
	start := time.Now()
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	registration := int64(0)
	var told []time.Time
	g := leaseGate{registration: func() int64 { return registration }, tell: func(asked time.Time) { told = append(told, asked) }}
	expect := func(when string, want ...time.Time) {
		t.Helper()
		if len(told) != len(want) {
			t.Fatalf("%s: %d renewals were passed on, want %d", when, len(told), len(want))
		}
		for i := range want {
			if !told[i].Equal(want[i]) {
				t.Errorf("%s: renewal %d was asked for at %v, want %v", when, i, told[i].Sub(start), want[i].Sub(start))
			}
		}
	}
	registration = 10
	g.renewed(at(0))
	expect("before any metadata")
	g.reached(9)
	expect("before the registration is shown")
	g.renewed(at(1))
	g.reached(10)
	expect("once it is shown, the newest counts", at(1))
	g.reached(11)
	expect("each counts once", at(1))
	g.renewed(at(2))
	expect("from then on at once", at(1), at(2))
	registration = 0
	g.renewed(at(3))
	expect("without a registration", at(1), at(2))
	registration = 20 // the lease was lost and granted anew
	g.renewed(at(9))
	g.reached(19)
	expect("with the metadata behind the new registration", at(1), at(2))
	g.reached(20)
	expect("once it shows the new registration", at(1), at(2), at(9))
}
