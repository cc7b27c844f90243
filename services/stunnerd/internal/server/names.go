package server

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
)

// refresh applies changed addresses of host names. Listeners with routes to these names get a new view. All listeners
// get a new view if the addresses of a public name of the gateway itself have changed. The rest of the config does not
// change.
func (s *Server) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.clusters
	s.clusters = cluster.Resolve(s.wanted.Clusters, s.names.Answers())
	s.viewBuilder.Take(s.clusters)
	changed := changedClusters(was, s.clusters)
	s.updateViews(func(l config.Listener) bool {
		return slices.ContainsFunc(l.Routes, func(route string) bool { return changed[route] })
	})
}

// changedClusters returns the names of the clusters whose endpoints differ between two lists of the same clusters.
func changedClusters(was, now []config.Cluster) map[string]bool {
	changed := map[string]bool{}
	for i, c := range now {
		if !slices.Equal(was[i].Endpoints, c.Endpoints) {
			changed[c.Name] = true
		}
	}
	return changed
}
