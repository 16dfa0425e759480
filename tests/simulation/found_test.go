package simulation

import "testing"

// found are the seeds whose walks once found something, by what it was. A walk is another
// one after each change of the simulation, and most rules have tests of their own by now
// (docs/safety.md); but where it still comes by the same place, it costs nothing to look.
var found = map[uint64]string{
	491:      "a broker barred for a vouch that nobody heard",
	631:      "a stale commit accepted",
	633:      "producers retained away",
	641:      "deleted keys that lived on",
	1225:     "a group that never settled",
	1358:     "deleted keys that lived on",
	5509:     "producers not handed on",
	5568:     "a log with a wrong end after a clean stop",
	6421:     "a walk that is slow to become whole",
	9852:     "a copy that joined with a verdict",
	105662:   "a member detached for good",
	106018:   "a member detached for good",
	107605:   "a truncation that met damage",
	5001095:  "retention",
	5002274:  "a partition that stood still",
	5002374:  "a log that was cut elsewhere",
	5003423:  "retention",
	5004044:  "retention",
	9000335:  "a first leader alone in its in-sync set",
	12006057: "a flipped bit in a fence",
	12014864: "a flipped bit where a log was cut",
	20000833: "a damaged copy added by a proposal from before",
	20012593: "a deletion that took the folder of a topic made again",
	40011687: "a truncation that forgot producers of a head that was gone",
	60008211: "followers that did not come to the end of a log that ended in a gap",
}

func TestSeedsThatFoundSomething(t *testing.T) {
	for seed, what := range found {
		if w := run(seed, nil, map[string]int{}, false); w.failure != nil {
			t.Errorf("seed %d, which found %s: %v", seed, what, w.failure)
		}
	}
}
