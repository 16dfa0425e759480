package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/leat-io/leat/cmd/leat/internal/cli"
)

func main() {
	// A reader of stdout that goes away, such as head, is an ordinary error of
	// a write: consume still commits what it printed.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.IO{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Signals: signals,
	}))
}
