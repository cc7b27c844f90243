package server

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
)

// refresh takes in other addresses of host names: listeners whose routes lead to them get their new view, and all listeners spare the new
// addresses of the gateway itself. Nothing else of the config is touched, and a listener whose names have not moved does not notice.
func (s *Server) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.clusters
	s.clusters = cluster.Resolve(s.wanted.Clusters, s.names.Answers())
	s.book.Take(s.clusters)
	moved := differing(was, s.clusters)
	s.spare(func(l config.Listener) bool {
		return slices.ContainsFunc(l.Routes, func(route string) bool { return moved[route] })
	})
}

// differing names the clusters whose endpoints are not the same in two lists of the same clusters.
func differing(was, now []config.Cluster) map[string]bool {
	differ := map[string]bool{}
	for i, c := range now {
		if !slices.Equal(was[i].Endpoints, c.Endpoints) {
			differ[c.Name] = true
		}
	}
	return differ
}
