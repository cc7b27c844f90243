package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Plan lists the changes of sockets from a running config to a new one. Computing it has no effect.
//
// Changes of certificates, credentials, realm, routes, clusters, addresses, quotas and log levels are only in Changes.
// They are applied in place and never end a session.
type Plan struct {
	// Start lists listeners that are new.
	Start []config.Listener
	// Replace lists listeners whose port or protocol changed. The new socket is opened first. The old one refuses new
	// sessions. Over UDP and DTLS it is closed after its last session. Over TCP and TLS it is closed at once, because
	// sessions have sockets of their own.
	Replace []config.Listener
	// Stop names removed listeners. Their sessions end.
	Stop []string
	// CloseFirst names the listeners of Stop and Replace whose port a new socket needs, for example because a listener
	// was renamed, two listeners swap their ports, or a listener changes from UDP to DTLS on its port. Their sockets
	// are closed before any socket is opened. Over UDP and DTLS this is the only change of a port that ends sessions,
	// because all sessions of a port share its sockets.
	CloseFirst []string
	// Changes lists the changed fields with secrets redacted, for the log and the status.
	Changes []config.Change
}

// PlanFor computes the plan for the change from the running config to the next one. Both configs must be valid.
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
	p.CloseFirst = p.closeFirst(old)
	return p
}

// socket is a transport and port, which only one listener can have at a time.
type socket struct {
	network string
	port    int
}

func socketOf(l config.Listener) socket { return socket{l.Protocol.Network(), l.Port} }

// closeFirst returns the value of the field CloseFirst: the stopped and replaced listeners whose port a new socket
// needs.
func (p Plan) closeFirst(running map[string]config.Listener) (names []string) {
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

// Empty reports whether nothing changes.
func (p Plan) Empty() bool {
	return len(p.Changes) == 0 && len(p.Start)+len(p.Replace)+len(p.Stop) == 0
}

// String returns the plan in one line.
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
	add("close first", p.CloseFirst...)
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
