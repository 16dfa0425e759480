package faults

import (
	"regexp"
	"slices"
	"testing"
)

// sources tells by which faults a transition comes about, by names with their places.
func sources() map[string]*regexp.Regexp {
	sources := map[string]*regexp.Regexp{}
	for transition, faults := range map[string]string{
		"elections from the ISR":            `^(kill|cut|stall) leader|^orderly stop`,
		"elections from the ELR":            `^down to the ELR`,
		"unclean elections":                 `^unclean election`,
		"controllers elected":               `^(kill|pause|cut|stall) controller$`,
		"truncations":                       `commitlog\.truncate|^unclean election|^(stall|one-way) leader`,
		"ISR shrinks":                       `^(kill|stall) follower`,
		"ISR growths":                       `^(kill|stall) follower`,
		"unknown transactions":              `controller\.txn\.after|^(cut|stall|one-way|kill) etcd leader|^etcd members apart`,
		"zombie writes rejected":            `^(pause|stall|one-way) (controller|coordinator)$|failpoint (pause|delay) controller\.txn`,
		"writes to deposed leaders refused": `^(pause|stall|one-way) leader|^leader without|^rolling restart`,
		"fencings":                          `^(pause|stall|cut) (leader|follower)`,
		"shard take-overs":                  `^(kill|pause|cut|stall) coordinator$`,
		"rebalances":                        `^group members`,
		"duplicates not appended":           `^(kill|cut|stall|one-way) (leader|gateway)`,
	} {
		sources[transition] = regexp.MustCompile(faults)
	}
	return sources
}

// chooser chooses what is struck next. Faults that may raise a count that is still at
// zero come first, once each; as long as some have not done so, every other strike is
// one of those, and else whatever was tried least.
type chooser struct {
	all     []fault
	tries   []int
	strikes int
	sources map[string]*regexp.Regexp
	random  func(int) int // of [0, n)
}

func newChooser(all []fault, random func(int) int) *chooser {
	return &chooser{all: all, tries: make([]int, len(all)), sources: sources(), random: random}
}

// next is the fault to try now; missing tells whether a fault, a failpoint or a
// transition is still at zero.
func (c *chooser) next(missing func(kind, name string) bool) fault {
	c.strikes++
	everything := make([]int, len(c.all))
	for i := range everything {
		everything[i] = i
	}
	lacking := slices.DeleteFunc(slices.Clone(everything), func(i int) bool { return !c.lacks(c.all[i], missing) })
	choice := c.least(everything)
	if urgent := c.least(lacking); len(urgent) > 0 && (c.tries[urgent[0]] == 0 || c.strikes%2 == 0) {
		choice = urgent
	}
	i := choice[c.random(len(choice))]
	c.tries[i]++
	return c.all[i]
}

// least are those of the faults that were tried least.
func (c *chooser) least(of []int) []int {
	if len(of) == 0 {
		return nil
	}
	fewest := c.tries[slices.MinFunc(of, func(a, b int) int { return c.tries[a] - c.tries[b] })]
	return slices.DeleteFunc(slices.Clone(of), func(i int) bool { return c.tries[i] > fewest })
}

// lacks reports whether a fault may raise a count that is at zero.
func (c *chooser) lacks(f fault, missing func(kind, name string) bool) bool {
	if missing("fault", f.name) || f.place != "" && missing("failpoint", f.place[1:]) {
		return true
	}
	for transition, faults := range c.sources {
		if faults.MatchString(f.name+f.place) && missing("transition", transition) {
			return true
		}
	}
	return false
}

// missing reports whether something is still at zero.
func (n *nemesis) missing() func(kind, name string) bool {
	totals := n.watch.totals()
	return func(kind, name string) bool {
		switch kind {
		case "fault":
			return n.byFault[name] == 0
		case "failpoint":
			return n.failpoints[name] == 0
		default:
			return totals[name] == 0
		}
	}
}

// TestSources: each transition that a full run has to see has faults that bring it
// about.
func TestSources(t *testing.T) {
	left := sources()
	for _, c := range counters() {
		faults := left[c.name]
		delete(left, c.name)
		if faults == nil && c.needed {
			t.Errorf("nothing is told to bring about %s", c.name)
		}
		if faults != nil && !slices.ContainsFunc(catalogue(), func(f fault) bool { return faults.MatchString(f.name + f.place) }) {
			t.Errorf("no fault is called %s, which is to bring about %s", faults, c.name)
		}
	}
	for name := range left {
		t.Errorf("%s is not counted", name)
	}
}

// TestChooser: everything that is at zero is tried soon, what stays at zero is tried
// again and again, and the others come by all the same.
func TestChooser(t *testing.T) {
	all := catalogue()
	c := newChooser(all, func(n int) int { return n - 1 })
	done, places, tried := map[string]bool{}, map[string]bool{}, map[string]int{}
	total := 0
	for range 3 * len(all) {
		f := c.next(func(kind, name string) bool {
			switch kind {
			case "fault":
				return !done[name]
			case "failpoint":
				return !places[name]
			default:
				return name == "unclean elections" // which do not come about
			}
		})
		total++
		tried[f.name+f.place]++
		done[f.name] = true
		if f.place != "" {
			places[f.place[1:]] = true
		}
		if total == 100 {
			for _, f := range all {
				if !done[f.name] || f.place != "" && !places[f.place[1:]] {
					t.Errorf("after 100 strikes %s%s has not been", f.name, f.place)
				}
			}
		}
	}
	if n := tried["unclean election"]; n < len(all)/2 {
		t.Errorf("what would bring about a transition that is missing was tried %d times only", n)
	}
	for _, f := range all {
		if tried[f.name+f.place] == 0 {
			t.Errorf("%s%s was never tried", f.name, f.place)
		}
	}
}
