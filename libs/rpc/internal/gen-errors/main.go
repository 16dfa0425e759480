package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/leat-io/leat/libs/rpc/internal/errorsdoc"
)

func main() {
	out := flag.String("out", "", "file to write; empty: stdout")
	flag.Parse()
	page := errorsdoc.Render()
	var err error
	if *out == "" {
		_, err = os.Stdout.Write(page)
	} else {
		err = os.WriteFile(*out, page, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen-errors:", err)
		os.Exit(1)
	}
}
