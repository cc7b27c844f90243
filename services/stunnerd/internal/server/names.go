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
	s.clusters = cluster.Resolve(s.wanted.Clusters, s.names.Answers())
	moved := differing(was, s.clusters)
	for _, l := range s.wanted.Listeners {
		if r := s.listeners[l.Name]; r != nil && slices.ContainsFunc(l.Routes, func(route string) bool { return moved[route] }) {
			r.obey(s.policy(s.wanted, l), s.view(l))
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
