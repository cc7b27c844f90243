package rest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// maxConfigs is the maximum number of configs in a status, whose size is limited by discovery.ResponseLimit.
const maxConfigs = 4_000

// Status returns the handler with which the operator of a cluster reads the state of the service. c has the configs of
// the cluster. The state says nothing about other clusters. program is the version of the service.
func Status(o Options, c *gateway.Directory, program string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		now := o.Now()
		configs, changed := c.Revisions()
		status := inspection.AuthStatus{
			Program: program, Now: now, Open: !o.Policy.Reads(), Configs: map[string]string{}, Changed: changed,
			Granted: o.Metrics.granted(now), Refused: map[string]uint64{},
		}
		if err := c.Synced(); err != nil {
			status.Problem = err.Error()
		}
		keys := o.Policy.Keys()
		status.KeysRead, status.KeysProblem = keys.ReadAt, keys.Problem
		for reason, n := range o.Metrics.Refused(now) {
			status.Refused[string(reason)] = n
		}
		ids := slices.Sorted(maps.Keys(configs))
		for _, id := range ids[:min(len(ids), maxConfigs)] {
			status.Configs[id] = configs[id]
		}
		status.Omitted = len(ids) - len(status.Configs)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(status) // fails only if the operator has disconnected
	}
}
