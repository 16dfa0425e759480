package dev

import (
	"context"
	"fmt"
)

// life is one run of an instance, in whatever form.
type life interface {
	// ready is closed once it serves.
	ready() <-chan struct{}
	// done is closed once it has ended; err tells how.
	done() <-chan struct{}
	err() error
	// stop asks it to end and waits; kill does not ask.
	stop(ctx context.Context)
	kill()
	// describe names it for people, for example "pid 123".
	describe() string
}

// starter begins a life of an instance.
type starter interface {
	start(in *instance) (life, error)
}

// awaitReady waits until a life serves. It is an error if it ends first.
func awaitReady(ctx context.Context, in *instance, l life) error {
	select {
	case <-l.ready():
		return nil
	case <-l.done():
		return fmt.Errorf("%s ended while it was starting: %w", in.name, orEnded(l.err()))
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w", in.name, ctx.Err())
	}
}

type endedError struct{}

func (endedError) Error() string { return "it exited without an error" }

func orEnded(err error) error {
	if err == nil {
		return endedError{}
	}
	return err
}
