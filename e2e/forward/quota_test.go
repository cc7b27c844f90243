package forward

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

const quota = 3

// withQuota gives each user a credential of its own, and a quota.
func (g *gateway) withQuota() credential.Authority {
	g.config.Auth = config.Auth{Type: config.AuthEphemeral, Realm: "media.example.org", Credentials: map[string]credential.Secret{
		config.KeySecret: "a secret of the applications of media.example.org",
	}}
	g.config.Admin.UserQuota = quota
	g.config.Default()
	g.discovery.Publish(g.config)
	return g.config.Auth.Authority()
}

// attempts are the calls of one user that were started at the same time.
type attempts struct {
	calls   []*client
	refused int
}

// dialAll starts calls of users at each of some pods, all at the same time.
func (g *gateway) dialAll(users map[string]int, authority credential.Authority, pods ...*pod) map[string]*attempts {
	g.t.Helper()
	var mu sync.Mutex
	var dialling sync.WaitGroup
	all, start := map[string]*attempts{}, make(chan struct{})
	for name, each := range users {
		all[name] = &attempts{}
		cred, err := authority.Mint(name, time.Hour, time.Now())
		must(g.t, err)
		for i := range each * len(pods) {
			g.nextPort++
			c := &client{local: netip.AddrPortFrom(g.net.Home[0], 20_000+g.nextPort)}
			c.move(pods[i%len(pods)])
			dialling.Go(func() {
				<-start
				var err error
				c.Call, err = call.Start(g.t.Context(), call.Options{
					Gateway: g.service, Network: call.UDP, Username: cred.Username, Password: string(cred.Password), Peer: g.peer,
					Interval: voice, Local: c.local, Balancer: &c.balancer,
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					all[name].calls = append(all[name].calls, c)
				case errors.Is(err, call.ErrRefused) && strings.Contains(err.Error(), "486"):
					all[name].refused++
				default:
					g.t.Errorf("%s at %s: %v", name, c.at.name, err)
				}
			})
		}
	}
	close(start)
	dialling.Wait()
	return all
}

// cut drops all packets between pods.
func cut(pods ...*pod) (heal func()) {
	for _, p := range pods {
		p.nft("add table ip cut")
		p.nft("add chain ip cut in { type filter hook input priority 0 ; }")
		for _, other := range pods {
			p.nft("add rule ip cut in ip saddr " + other.addr.Addr().String() + " drop")
		}
	}
	return func() {
		for _, p := range pods {
			p.nft("delete table ip cut")
		}
	}
}

func (p *pod) nft(command string) {
	p.t.Helper()
	_, err := p.net.Exec("nft " + command)
	must(p.t, err)
}

// T-12: a user with a quota of 3 that sends 30 requests to 3 pods at once gets 3 sessions. While the pods cannot reach
// each other, it gets at most 3 in each pod. All other users get their sessions, in both cases and afterwards.
func TestQuotaOverPods(t *testing.T) {
	g := newGateway(t)
	authority := g.withQuota()
	pods := g.add(3)
	// each user has one call at each pod
	modest := map[string]int{"bob": 1, "eve": 1, "zoe": 1, "joe": 1, "kim": 1, "lee": 1}
	attempt := func(name string, most int) *attempts {
		t.Helper()
		users := map[string]int{name: 10}
		for other, each := range modest {
			users[other+" beside "+name] = each
		}
		begun := time.Now()
		all := g.dialAll(users, authority, pods...)
		took := time.Since(begun)
		got := all[name]
		t.Logf("%s: %d of 30 calls, %d others, in %v", name, len(got.calls), len(modest), took)
		if n := len(got.calls); n > most || n < quota || n+got.refused != 30 {
			t.Errorf("%s has %d calls, want %d to %d; %d were refused", name, n, quota, most, got.refused)
		}
		delete(all, name)
		for other, a := range all {
			if len(a.calls) != len(pods) || a.refused != 0 {
				t.Errorf("%s has %d calls of %d, %d were refused", other, len(a.calls), len(pods), a.refused)
			}
			end(t, a.calls...)
		}
		return got
	}
	ann := attempt("ann", quota)
	awaitMore(t, ann.calls, 20)
	last := ann.calls[0]
	end(t, last)
	again := g.until("a place is free", func() bool {
		a := g.dialAll(map[string]int{"ann": 1}, authority, pods...)["ann"]
		ann.calls = append(ann.calls[1:], a.calls...)
		return len(a.calls) == 1
	})
	if !again {
		t.Errorf("ann gets no call after one has ended")
	}
	end(t, ann.calls...)

	heal := cut(pods...)
	mia := attempt("mia", quota*len(pods))
	heal()
	end(t, mia.calls...)
	tries := 0
	g.until("the quota counts over pods again", func() bool {
		tries++
		name := fmt.Sprint("ida", tries)
		a := g.dialAll(map[string]int{name: 10}, authority, pods...)[name]
		end(t, a.calls...)
		return len(a.calls) == quota
	})
}

// until repeats an attempt until it succeeds.
func (g *gateway) until(what string, ok func() bool) bool {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), limit)
	defer cancel()
	for !ok() {
		if ctx.Err() != nil {
			g.t.Errorf("not in time: %s", what)
			return false
		}
	}
	return true
}
