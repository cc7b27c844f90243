package server

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// maxFormer bounds the number of former authorities, because each request with a wrong signature is checked against all
// of them. If credentials change more often than maxFormer times within the overlap, the earliest authorities are
// removed before the overlap ends.
const maxFormer = 16

// rememberFormer keeps the authority that the next config replaces, for the credential overlap of that config, so that
// sessions that were created with the authority can still refresh. An authority is kept once, even if the config
// alternates between two authorities. If only the realm changes, nothing needs to be kept, because a session stores its
// realm. A shorter overlap also applies to authorities that were replaced earlier. A longer overlap does not restore
// removed authorities.
//
// The journal has the list for the next process, and a session that goes to another pod takes its authorities along.
func (s *Server) rememberFormer(next config.Auth) {
	was := slices.Clone(s.former)
	defer func() {
		if !slices.Equal(s.former, was) {
			s.opt.Journal.Former(s.former)
		}
	}()
	now, old, authority := time.Now(), s.running.Auth.Authority(), next.Authority()
	until := now.Add(next.Overlap())
	for i, f := range s.former {
		if f.Until.After(until) {
			s.former[i].Until = until
		}
	}
	leaving, _ := s.running.Auth.FormerAuthority() // the previous secret of a config has admitted sessions too
	if stays, _ := next.FormerAuthority(); leaving.In(stays.Realm) == stays {
		leaving = credential.Authority{}
	}
	s.former = slices.DeleteFunc(s.former, func(f gate.Former) bool {
		return !now.Before(f.Until) || f.Authority == old || f.Authority == leaving
	})
	if !now.Before(until) || len(s.listeners) == 0 {
		return
	}
	for _, a := range []credential.Authority{leaving, old} {
		if a != (credential.Authority{}) && a.In(authority.Realm) != authority {
			s.former = append(s.former, gate.Former{Authority: a, Replaced: now, Until: until})
		}
	}
	s.former = s.former[max(0, len(s.former)-maxFormer):]
}

// learnFormer adds the former authorities of a session that comes from another pod: this process may have started after
// the config change. They end as at that pod, and at the latest after the credential overlap of the running config.
func (s *Server) learnFormer(list []session.Former) {
	if len(list) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	latest, known := now.Add(s.running.Auth.Overlap()), len(s.former)
	for _, f := range list {
		if f.Until.After(latest) {
			f.Until = latest
		}
		same := func(o session.Former) bool { return o.Authority == f.Authority }
		if now.Before(f.Until) && !slices.ContainsFunc(s.former, same) {
			s.former = append(s.former, f)
		}
	}
	if len(s.former) == known {
		return
	}
	slices.SortStableFunc(s.former, func(a, b session.Former) int { return a.Replaced.Compare(b.Replaced) })
	s.former = s.former[max(0, len(s.former)-maxFormer):]
	s.opt.Journal.Former(s.former)
	for _, l := range s.wanted.Listeners {
		if g := s.listeners[l.Name]; g != nil {
			g.update(s.policy(s.wanted, l), s.allowed[l.Name].WithoutSelf(s.self))
		}
	}
}

func (s *Server) policy(c config.Config, l config.Listener) *gate.Policy {
	former := slices.Clone(s.former)
	if authority, until := c.Auth.FormerAuthority(); authority != (credential.Authority{}) {
		former = append(former, gate.Former{Authority: authority, Until: until, New: true})
	}
	return &gate.Policy{
		Authority:  c.Auth.Authority(),
		Gateway:    c.Admin.Name,
		Former:     former,
		RelayAddrs: s.relayAddrs(l.Address),

		SessionGrace: time.Duration(c.Auth.SessionGrace) * time.Second,
		Revoked:      s.revoked,
	}
}

func bounds(a config.Admin, capacity session.Amounts) session.Bounds {
	return session.Bounds{
		UserSessions: a.UserQuota, SourceSessions: a.SourceQuota,
		SessionRate: a.SessionByteRate, UserRate: a.UserByteRate, Capacity: capacity,
	}
}

// capacity returns the maximum amount of each kind that the process holds for clients.
func (s *Server) capacity() session.Amounts {
	return session.Amounts{
		session.RelayPorts: int64(cmp.Or(s.opt.Allocations, s.opt.Capacity)),
		session.Memory:     s.opt.Memory,
		session.Slots:      offload.DefaultMaxBindings,
	}
}

// Capacity returns how many allocations fit into the process, or 0 if there is no maximum. For each further allocation
// it assumes the transport of the listeners that needs the most memory.
func (s *Server) Capacity() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var dearest config.Protocol
	for _, l := range s.running.Listeners {
		if session.PriceOfTransport(l.Protocol) >= session.PriceOfTransport(dearest) {
			dearest = l.Protocol
		}
	}
	return int(s.table.Capacity(dearest))
}

// relayAddrs returns the relay addresses of a listener: the address in the config of the listener first, then the
// address of the host in the other family. A listener without an address in the config has all addresses of
// Options.HostAddresses.
func (s *Server) relayAddrs(address string) []netip.Addr {
	addr, err := netip.ParseAddr(address)
	if err != nil || addr.IsUnspecified() {
		return s.opt.HostAddresses
	}
	addrs := []netip.Addr{addr.Unmap()}
	for _, a := range s.opt.HostAddresses {
		if a.Is4() != addrs[0].Is4() {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
