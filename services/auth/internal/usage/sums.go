package usage

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// sums adds up the answers of pods.
type sums struct {
	query   inspection.UsageQuery
	out     Answer
	entries map[string]*inspection.UsageFigures
	missing bool
}

func newSums(q inspection.UsageQuery) *sums {
	return &sums{query: q, entries: map[string]*inspection.UsageFigures{}}
}

// add adds the answers of the pods of a Gateway.
func (s *sums) add(g Gateway, list inspection.List) {
	s.missing = s.missing || len(list.Incomplete) > 0
	if s.query.By == Gateways {
		s.entry(g.Name)
	}
	for _, item := range list.Items {
		s.out.PodsAsked++
		var of inspection.Usage
		if item.Error != "" || item.Status != http.StatusOK || json.Unmarshal(item.Body, &of) != nil {
			s.missing = true
			continue
		}
		s.out.PodsAnswered++
		s.pod(g, of)
	}
}

// pod adds the answer of a pod.
func (s *sums) pod(g Gateway, of inspection.Usage) {
	since := of.Since
	if since.Before(s.query.From) {
		since = s.query.From.UTC().Truncate(time.Minute)
	}
	if since.After(s.out.Since) {
		s.out.Since = since
	}
	s.out.Total.Add(of.Total)
	if s.query.By == Gateways {
		// The pod was asked for one entry only, so Truncated is expected, except in a query for one user.
		s.out.Truncated = s.out.Truncated || of.Truncated && s.query.User != ""
		s.entry(g.Name).Add(of.Total)
		return
	}
	s.out.Truncated = s.out.Truncated || of.Truncated
	for _, e := range of.Entries {
		name := e.User
		switch {
		case s.query.By == inspection.UsageByRoute:
			name = e.Route
		case s.query.User != "":
			name = s.query.User // the pod may have returned the hash of the name
		}
		s.entry(name).Add(e.UsageFigures)
	}
}

func (s *sums) entry(name string) *inspection.UsageFigures {
	if s.entries[name] == nil {
		s.entries[name] = &inspection.UsageFigures{}
	}
	return s.entries[name]
}

// answer returns the sums. asked reports whether all operators have answered.
func (s *sums) answer(asked bool) Answer {
	out := s.out
	out.Complete = asked && !s.missing
	for name, figures := range s.entries {
		out.Entries = append(out.Entries, Entry{name, *figures})
	}
	slices.SortFunc(out.Entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.Bytes(), a.Bytes()), cmp.Compare(a.Name, b.Name))
	})
	if len(out.Entries) > s.query.Limit {
		out.Entries, out.Truncated = out.Entries[:s.query.Limit], true
	}
	return out
}
