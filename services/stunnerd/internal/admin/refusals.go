package admin

import (
	"net/http"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Refusals serves the last refusals and drops.
func (i *Inspector) Refusals() http.Handler {
	return i.show(func(f inspection.Filter) any {
		entries, suppressed := i.process.Meter.Recent()
		list, routes := inspection.RefusalList{Refusals: []inspection.Refusal{}, Suppressed: suppressed}, i.routes()
		for _, e := range entries {
			if i.matches(f, e.Listener, userID(e.User), e.Client) && !e.Last.Before(f.Since) &&
				(f.Reason == "" || f.Reason == e.Reason.String()) && len(list.Refusals) < f.Limit {
				list.Refusals = append(list.Refusals, i.refusal(e, routes))
			}
		}
		return list
	}, append(commonParameters, "reason")...)
}

func (i *Inspector) refusal(e meter.Entry, routes map[string]string) inspection.Refusal {
	its, runs := routes[e.Listener]
	if !runs {
		its = "it does not run any more"
	}
	shown := inspection.Refusal{
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
	for _, l := range i.process.Listeners() {
		routes[l.Name] = meter.Routes(l.Routes)
	}
	return routes
}

// userID returns the user id in a TURN user name, so that refusals and sessions show the same user.
func userID(username string) string {
	if name, _ := credential.ParseUsername(username); name.UserID != "" { // also if its caveats are malformed
		return name.UserID
	}
	return username
}
