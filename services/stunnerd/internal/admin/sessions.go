package admin

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Sessions serves the live sessions.
func (i *Inspector) Sessions() http.Handler {
	return i.show(func(f inspection.Filter) any {
		i.process.Meter.Refresh()
		list := inspection.SessionList{Sessions: []inspection.Session{}}
		now := time.Now()
		for _, s := range i.process.Sessions.List() {
			if s.Started.Before(f.Since) || !i.matches(f, s.Listener, s.UserID, s.Client.Addr()) {
				continue
			}
			if list.Total++; list.Total <= f.Limit {
				list.Sessions = append(list.Sessions, i.session(s, now))
				if f.Limit <= inspection.DefaultLimit {
					list.Sessions[len(list.Sessions)-1].Peers = lastPeers(s)
				}
			}
		}
		return list
	}, commonParameters...)
}

// Kick ends the session whose ID is in the path, or the sessions that the parameters user and client select. At least
// one of them is needed.
func (i *Inspector) Kick() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, id := r.URL.Query(), r.PathValue("id")
		known := []string{"user", "client"}
		if id != "" {
			known = nil
		}
		f, err := i.filter(query, known)
		switch {
		case err != nil:
		case id == "" && len(query) == 0:
			err = errors.New("select sessions to end: give user, client or both")
		case query.Has("user") && f.User == "" || query.Has("client") && f.Client == "":
			err = errors.New("select sessions to end: user or client is empty")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ended := i.process.End(func(s *session.Session) bool {
			return (id == "" || id == i.sessionID(s)) && i.matches(f, s.Listener, s.UserID, s.Client.Addr())
		})
		slices.SortFunc(ended, func(a, b *session.Session) int { return a.Started.Compare(b.Started) })
		kicked, now := inspection.Kicked{Ended: []inspection.Session{}, Total: len(ended)}, time.Now()
		for _, s := range ended[:min(len(ended), inspection.DefaultLimit)] {
			kicked.Ended = append(kicked.Ended, i.session(s, now))
		}
		writeJSON(w, kicked)
	})
}

// sessionID returns the ID of a session as shown to callers.
func (i *Inspector) sessionID(s *session.Session) string {
	return i.hash("session", strconv.FormatUint(s.ID, 10))
}

func (i *Inspector) session(s *session.Session, now time.Time) inspection.Session {
	var caveats *credential.Caveats
	if !s.Caveats.IsZero() {
		caveats = &s.Caveats
	}
	return inspection.Session{
		ID: i.sessionID(s), Listener: s.Listener, Protocol: s.Protocol, Caveats: caveats,
		User: i.user(s.UserID), Client: i.client(s.Client.Addr()), Relay: s.Relay.String(),
		Started: s.Started.UTC().Truncate(time.Second), Age: now.Sub(s.Started).Round(time.Second).String(),
		Channels: s.Channels(), Front: front(s.Client), Stats: s.Traffic.Stats(now),
	}
}

// front returns the address of the pod at which the datagrams of a client arrive. It returns "" if that is this pod.
func front(c session.Client) string {
	if m, ok := c.(session.Movable); ok && m.Front().IsValid() {
		return m.Front().String()
	}
	return ""
}
