package admin

import (
	"net/http"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Usage serves the usage of the last hour. It shows users as usage records do and ignores Access.Users, because the
// usage of one user in several processes must have one key. Therefore only the operator may request it, and the
// operator requires a separate right from its callers.
func (i *Inspector) Usage() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := inspection.ParseUsageQuery(r.URL.Query(), time.Now())
		if err != nil {
			http.Error(w, "usage: "+err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, i.process.Usage(q))
	})
}
