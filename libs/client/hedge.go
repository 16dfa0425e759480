package client

import (
	"context"
	"time"
)

// hedgeAfter is how long an address may take before the next one is asked, too: a
// process that hangs must not hold up what any other could answer.
const hedgeAfter = 250 * time.Millisecond

// hedged makes one call at a time to addresses in order, going on to the next when
// one fails or takes long, until one succeeds. It returns that one's answer and
// address, or the errors of all. All calls have ended when it returns.
func hedged[R any](ctx context.Context, addrs []string, call func(context.Context, string) (R, error)) (answer R, from string, errs []error) {
	type result struct {
		answer R
		addr   string
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result, len(addrs))
	begun, ended := 0, 0
	defer func() {
		cancel()
		for ; ended < begun; ended++ {
			<-results
		}
	}()
	timer := time.NewTimer(hedgeAfter)
	defer timer.Stop()
	begin := func() {
		if begun < len(addrs) && ctx.Err() == nil {
			addr := addrs[begun]
			begun++
			timer.Reset(hedgeAfter)
			go func() {
				a, err := call(ctx, addr)
				results <- result{a, addr, err}
			}()
		}
	}
	begin()
	for ended < begun {
		select {
		case r := <-results:
			ended++
			if r.err == nil {
				return r.answer, r.addr, nil
			}
			errs = append(errs, r.err)
			begin()
		case <-timer.C:
			begin()
		}
	}
	return answer, "", errs
}
