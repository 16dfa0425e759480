//go:build failpoints

package failpoint

import (
	"encoding/json"
	"io"
	"net/http"
)

// maxBody bounds what Handler reads, in bytes.
const maxBody = 64 << 10

// Handler arms places with PUT and tells counts with GET.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut:
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
			if err == nil {
				err = Arm(string(body))
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		case http.MethodGet:
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(Counts()); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		default:
			http.Error(w, "use GET or PUT", http.StatusMethodNotAllowed)
		}
	})
}
