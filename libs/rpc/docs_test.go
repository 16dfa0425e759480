package rpc_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/leat-io/leat/libs/rpc/internal/errorsdoc"
)

// docs/errors.md says what the table says.
func TestErrorsPageIsUpToDate(t *testing.T) {
	got, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, errorsdoc.Render()) {
		t.Error("docs/errors.md is out of date: run go generate ./rpc in libs")
	}
}
