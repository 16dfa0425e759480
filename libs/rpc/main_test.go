package rpc

import (
	"testing"

	"go.uber.org/goleak"
)

// No goroutine outlives the tests of this package.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
