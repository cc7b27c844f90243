package server

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
)

// refresh gives the listeners whose routes lead to names with other addresses their new view. Nothing else of the config is touched,
// and a listener whose names have not moved does not notice.
func (s *Server) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.clusters
	s.clusters = cluster.Resolve(s.running.Clusters, s.names.Answers())
	moved := differing(was, s.clusters)
	for _, l := range s.running.Listeners {
		if slices.ContainsFunc(l.Routes, func(route string) bool { return moved[route] }) {
			s.listeners[l.Name].obey(s.policy(s.running, l), s.view(s.running, l))
		}
	}
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
