//go:build failpoints

package obs

import (
	"net/http"

	"github.com/leat-io/leat/libs/failpoint"
)

// addFailpoints lets tests arm failpoints, in builds that have them.
func addFailpoints(mux *http.ServeMux) { mux.Handle("/debug/failpoints", failpoint.Handler()) }
