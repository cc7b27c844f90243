package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Plan is what a changed config does to the sockets of a running dataplane. It is a value: computing one touches nothing.
//
// Only sockets appear in it. Certificates, credentials, realm, routes, clusters, addresses, quotas and log levels are swapped in place
// and never cost a session.
type Plan struct {
	// Start lists listeners that are new.
	Start []config.Listener
	// Replace lists listeners whose port or protocol changed: the new socket opens first, the old one takes no new sessions and closes
	// when its last one has ended. Over TCP and TLS sessions have sockets of their own, so that the port is free at once.
	Replace []config.Listener
	// Stop names listeners that are gone; their sessions end with them.
	Stop []string
	// Yield names listeners of Stop and Replace whose socket another one wants: a renamed listener, or two that swap their ports. They
	// give their port up before anything opens, since no two can have one port. Over UDP and DTLS it is the one change of a port that costs
	// sessions: all of them share the socket.
	Yield []string
	// Changes says field by field what is different, secrets redacted: what a person reads in the log and in the status.
	Changes []config.Change
}

// PlanFor computes what turns the running config into the next one. Both have been validated.
func PlanFor(running, next config.Config) Plan {
	p := Plan{Changes: config.Diff(running, next)}
	old := byName(running.Listeners)
	for _, l := range next.Listeners {
		was, known := old[l.Name]
		switch {
		case !known:
			p.Start = append(p.Start, l)
		case was.Port != l.Port || was.Protocol != l.Protocol:
			p.Replace = append(p.Replace, l)
		}
	}
	wanted := byName(next.Listeners)
	for _, l := range running.Listeners {
		if _, kept := wanted[l.Name]; !kept {
			p.Stop = append(p.Stop, l.Name)
		}
	}
	p.Yield = yielding(p, old)
	return p
}

// socket is what no two listeners can have at the same time.
type socket struct {
	network string
	port    int
}

func socketOf(l config.Listener) socket { return socket{l.Protocol.Network(), l.Port} }

// yielding names the listeners that are on their way out, or to another port, and hold what a new one wants.
func yielding(p Plan, running map[string]config.Listener) (names []string) {
	wanted := map[socket]bool{}
	leaving := slices.Clone(p.Stop)
	for _, l := range p.Start {
		wanted[socketOf(l)] = true
	}
	for _, l := range p.Replace {
		wanted[socketOf(l)] = true
		leaving = append(leaving, l.Name)
	}
	for _, name := range leaving {
		if wanted[socketOf(running[name])] {
			names = append(names, name)
		}
	}
	return names
}

// Empty tells whether nothing at all changes.
func (p Plan) Empty() bool {
	return len(p.Changes) == 0 && len(p.Start)+len(p.Replace)+len(p.Stop) == 0
}

// String says the plan in one line.
func (p Plan) String() string {
	if p.Empty() {
		return "nothing changes"
	}
	var parts []string
	add := func(verb string, names ...string) {
		if len(names) > 0 {
			parts = append(parts, verb+" "+strings.Join(names, ", "))
		}
	}
	add("start", sockets(p.Start)...)
	add("replace", sockets(p.Replace)...)
	add("stop", p.Stop...)
	add("close first", p.Yield...)
	if n := len(p.Changes); n > 0 {
		add("update", fmt.Sprintf("%d fields", n))
	}
	return strings.Join(parts, "; ")
}

func sockets(list []config.Listener) (names []string) {
	for _, l := range list {
		names = append(names, fmt.Sprintf("%s (%s %d)", l.Name, l.Protocol, l.Port))
	}
	return names
}

func byName(list []config.Listener) map[string]config.Listener {
	m := make(map[string]config.Listener, len(list))
	for _, l := range list {
		m[l.Name] = l
	}
	return m
}
