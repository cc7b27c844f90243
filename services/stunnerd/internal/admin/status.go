package admin

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// cuts lists the parts of a status that are removed, in this order, until the status is short enough for the operator.
// The operator can read these parts in the config instead.
var cuts = []struct {
	name string
	cut  func(*inspection.Status)
}{
	{"endpoints of clusters", func(s *inspection.Status) {
		for i := range s.Clusters {
			s.Clusters[i].Endpoints, s.Clusters[i].Except = nil, nil
		}
	}},
	{"certificates of listeners in PEM", func(s *inspection.Status) {
		for i := range s.Listeners {
			s.Listeners[i].Cert, s.Listeners[i].Certificates = "", nil
		}
	}},
	{"clusters", func(s *inspection.Status) { s.Clusters = []inspection.ClusterStatus{} }},
	{"routes, service addresses and load balancers of listeners", func(s *inspection.Status) {
		for i := range s.Listeners {
			s.Listeners[i].Routes, s.Listeners[i].ServiceAddresses, s.Listeners[i].ProxyProtocol = nil, nil, nil
		}
	}},
}

// boundedStatus serves the status with at most discovery.ResponseLimit bytes, for configs with many endpoints.
func (i *Inspector) boundedStatus() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := i.status()
		var left []string
		for _, c := range cuts {
			if data, err := json.Marshal(status); err == nil && len(data) <= discovery.ResponseLimit {
				break
			}
			c.cut(&status)
			left = append(left, c.name)
			status.Withheld = "too long for an answer to the operator: " + strings.Join(left, ", ")
		}
		writeJSON(w, status)
	})
}
