package history

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Check compares the history with the whole log and lists what is wrong:
//
//   - each acknowledged record is where its producer was told;
//   - nothing that failed for sure is there;
//   - no record is there twice (see MayRepeat);
//   - per producer and key, records are in the order of sending;
//   - each reader saw, at each offset, what the log holds there;
//   - offsets and leader epochs do not go back, and nothing is there that nobody
//     sent.
func (h *History) Check(log []Record) []string {
	h.mu.Lock()
	h.checkLog(log)
	h.checkAcks(log)
	h.mu.Unlock()
	return h.Problems()
}

func (h *History) checkLog(log []Record) {
	next := map[int]int64{}
	epoch := map[int]int{}
	at := map[Place]string{}
	times := map[string]int{}
	last := map[string]int{} // number by partition, producer and key
	for _, r := range log {
		if r.Offset != next[r.Partition] {
			h.problem("partition %d goes on with offset %d, want %d", r.Partition, r.Offset, next[r.Partition])
		}
		if r.Epoch < epoch[r.Partition] {
			h.problem("%+v is of leader epoch %d, the record before it of %d", r.Place, r.Epoch, epoch[r.Partition])
		}
		next[r.Partition], epoch[r.Partition] = r.Offset+1, r.Epoch
		at[r.Place] = r.Value
		name, number, err := split(r.Value)
		if err != nil || r.Key != Key(name, number) || h.producers[name] == nil {
			h.problem("%+v holds key %q and value %q, which nobody sent", r.Place, r.Key, r.Value)
			continue
		}
		times[r.Value]++
		if times[r.Value] > 1 {
			p := h.producers[name]
			if a := p.acks[number]; !p.mayRepeat || a != nil && !a.unknown && !a.maybe {
				h.problem("%s is there %d times, last at %+v", r.Value, times[r.Value], r.Place)
			}
			continue
		}
		lane := fmt.Sprint(r.Partition, " ", r.Key)
		if number <= last[lane] {
			h.problem("%+v: %d of key %s comes after %d", r.Place, number, r.Key, last[lane])
		}
		last[lane] = number
	}
	for place, value := range h.values {
		if at[place] != value {
			h.problem("a reader was given %q at %+v, where the log has %q", value, place, at[place])
		}
	}
}

func (h *History) checkAcks(log []Record) {
	at := map[Place]string{}
	there := map[string]Place{}
	for _, r := range log {
		at[r.Place], there[r.Value] = r.Value, r.Place
	}
	for name, p := range h.producers {
		for number, a := range p.acks {
			value := Value(name, number)
			place, stored := there[value]
			switch {
			case a.unknown:
			case a.reason != "":
				if stored {
					h.problem("%s failed with %s, not done, and is there at %+v", value, a.reason, place)
				}
			case at[a.place] != value:
				where := "nowhere"
				if stored {
					where = fmt.Sprintf("at %+v", place)
				}
				h.problem("acknowledged %s is not at %+v but %s; %q is there", value, a.place, where, at[a.place])
			}
		}
	}
}

func split(value string) (producer string, number int, err error) {
	cut := strings.LastIndexByte(value, '-')
	if cut < 0 {
		return "", 0, fmt.Errorf("%q has no number", value)
	}
	_, err = fmt.Sscanf(value[cut+1:], "%d", &number)
	return value[:cut], number, err
}

// Feed writes a producer's records, so many a second, as `leat produce --input
// json` takes them, until it is stopped; stop ends the input and returns how many
// were written.
func Feed(producer string, rate int) (input io.Reader, stop func() int) {
	r, w := io.Pipe()
	quit, done := make(chan struct{}), make(chan struct{})
	sent := 0
	go func() {
		defer close(done)
		defer w.Close()
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			number := sent + 1
			if _, err := fmt.Fprintf(w, "{\"key\":%q,\"value\":%q}\n", Key(producer, number), Value(producer, number)); err != nil {
				return
			}
			sent = number
		}
	}()
	return r, func() int {
		close(quit)
		w.Close()
		<-done
		return sent
	}
}
