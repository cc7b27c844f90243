package admin

import (
	"net/http"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// RefusalList is the answer of /refusals.
type RefusalList struct {
	// Refusals are the last matching refusals, newest first.
	Refusals []Refusal `json:"refusals"`
	// Suppressed counts the refusals and drops since the start that were too frequent to be recorded. The metrics count
	// all of them.
	Suppressed uint64 `json:"suppressed"`
}

// Refusal is a request that was answered with an error, or a dropped datagram.
type Refusal struct {
	Last     time.Time `json:"last"`
	First    time.Time `json:"first"`
	Times    int       `json:"times"`
	Answered bool      `json:"answered"`
	Reason   string    `json:"reason"`
	Text     string    `json:"text"`
	Listener string    `json:"listener,omitempty"`
	User     string    `json:"user,omitempty"`
	Client   string    `json:"client,omitempty"`
	Peer     string    `json:"peer,omitempty"`
}

// Refusals serves the last refusals and drops.
func (i *Inspector) Refusals() http.Handler {
	return i.show(func(q query) any {
		entries, suppressed := i.meter.Recent()
		list, routes := RefusalList{Refusals: []Refusal{}, Suppressed: suppressed}, i.routes()
		for _, e := range entries {
			shown := i.refusal(e, routes)
			if q.matches(shown.Listener, shown.User) && len(list.Refusals) < q.limit {
				list.Refusals = append(list.Refusals, shown)
			}
		}
		return list
	})
}

func (i *Inspector) refusal(e meter.Entry, routes map[string]string) Refusal {
	its, runs := routes[e.Listener]
	if !runs {
		its = "it does not run any more"
	}
	shown := Refusal{
		Last: e.Last.UTC().Truncate(time.Millisecond), First: e.First.UTC().Truncate(time.Millisecond),
		Times: e.Times, Answered: e.Answered, Reason: e.Reason.String(), Text: e.Text(its),
		Listener: e.Listener, User: i.user(userID(e.User)), Client: i.client(e.Client),
	}
	if e.Peer.IsValid() {
		shown.Peer = e.Peer.String()
	}
	return shown
}

// routes returns a description of the routes of each listener.
func (i *Inspector) routes() map[string]string {
	routes := map[string]string{}
	for _, l := range i.listeners() {
		routes[l.Name] = "routes: " + strings.Join(l.Routes, ", ")
		if len(l.Routes) == 0 {
			routes[l.Name] = "it has no routes"
		}
	}
	return routes
}

// userID returns the user id in a TURN user name, so that refusals and sessions show the same user.
func userID(username string) string {
	if _, id, ok := credential.ParseUsername(username); ok && id != "" {
		return id
	}
	return username
}
