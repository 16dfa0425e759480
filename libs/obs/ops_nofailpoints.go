//go:build !failpoints

package obs

import "net/http"

// addFailpoints adds nothing: this build has no failpoints.
func addFailpoints(*http.ServeMux) {}
