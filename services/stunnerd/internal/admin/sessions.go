package admin

import (
	"net/http"
	"strconv"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/server"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// SessionList is the answer of /sessions.
type SessionList struct {
	// Sessions are the oldest matching sessions, the oldest first, up to the limit of the request.
	Sessions []Session `json:"sessions"`
	// Total is the number of all matching sessions.
	Total int `json:"total"`
}

// Session is a live session.
type Session struct {
	ID       string          `json:"id"`
	Listener string          `json:"listener"`
	Protocol config.Protocol `json:"protocol"`
	User     string          `json:"user"`
	Client   string          `json:"client"`
	Relay    string          `json:"relay"`
	Started  time.Time       `json:"started"`
	Age      string          `json:"age"`
	Channels int             `json:"channels"`
	// Stats counts the traffic of the relay: rx from peers, tx to peers.
	Stats server.Stats `json:"stats"`
}

// Sessions serves the live sessions.
func (i *Inspector) Sessions() http.Handler {
	return i.show(func(q query) any {
		i.meter.Refresh()
		list := SessionList{Sessions: []Session{}}
		now := time.Now()
		for _, s := range i.sessions.List() {
			if !q.matches(s.Listener, i.user(s.UserID)) {
				continue
			}
			if list.Total++; list.Total <= q.limit {
				list.Sessions = append(list.Sessions, i.session(s, now))
			}
		}
		return list
	})
}

func (i *Inspector) session(s *session.Session, now time.Time) Session {
	return Session{
		ID: i.hash("session", strconv.FormatUint(s.ID, 10)), Listener: s.Listener, Protocol: s.Protocol,
		User: i.user(s.UserID), Client: i.client(s.Client.Addr()), Relay: s.Relay.String(),
		Started: s.Started.UTC().Truncate(time.Second), Age: now.Sub(s.Started).Round(time.Second).String(),
		Channels: s.Channels(), Stats: server.StatsOf(&s.Traffic, now),
	}
}
