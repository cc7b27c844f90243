package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// the config changes a hundred times per second, back and forth.
func TestR11Flapping(t *testing.T) {
	const (
		rate   = 100
		lasts  = 5 * time.Second
		resend = time.Second / rate
	)
	b := newBench(t)
	h, source := serving(t, b.config)
	b.start(h.url())
	b.inForce(b.config)
	live := b.calls(2)
	other := b.flipped()
	b.settled(len(live))
	goroutines, applied := b.metric("go_goroutines"), b.metric("stunner_config_applied_total")
	files := b.files() // including the connection for metrics

	tick := time.NewTicker(resend)
	defer tick.Stop()
	began := time.Now()
	for i := 0; time.Since(began) < lasts; i++ {
		source.Publish([]config.Config{other, b.config}[i%2])
		<-tick.C
	}
	lasted := time.Since(began)
	source.Publish(other)
	source.Publish(b.config)
	took := b.within(time.Second, "the last config is in force", b.runs(b.config))
	applies := b.metric("stunner_config_applied_total") - applied
	if most := 10*lasted.Seconds() + 2; applies > most || applies < 5 {
		t.Errorf("%g configs applied in %s, want 5 to %g", applies, lasted, most)
	}
	t.Logf("last config in force after %s, %.1f configs applied per second", took, applies/lasted.Seconds())
	b.goOn(live)
	b.settled(len(live))
	b.await("number of files and goroutines is not larger than before", func(context.Context) error {
		// including those that serve this request
		if f, g := b.files(), b.metric("go_goroutines"); f > files || g > goroutines+2 {
			return fmt.Errorf("%d files, %g goroutines; before %d, %g", f, g, files, goroutines)
		}
		return nil
	})
	b.unharmed(live, silence)
}

// flipped returns a config that differs in all parts that are costly to change: sockets, policies, routes.
func (b *bench) flipped() config.Config {
	b.t.Helper()
	port := freePorts(b.t, 1)[0]
	return b.changed(func(c *config.Config) {
		c.Auth.Realm, c.Auth.Credentials[config.KeySecret] = "other.example.org", "another-one"
		c.Admin.UserQuota = 100
		c.Clusters = append(c.Clusters, config.Cluster{
			Name: "faults/more", Type: config.Static, Protocol: "UDP", Endpoints: []string{"192.0.2.0/24"},
		})
		c.Listeners = append(c.Listeners,
			config.Listener{
				Name: gateway + "/more-udp", Protocol: config.TURNUDP, Address: bed.Loopback, Port: port,
				Routes: []string{"faults/more"},
			},
			config.Listener{Name: gateway + "/more-tcp", Protocol: config.TURNTCP, Address: bed.Loopback, Port: port})
		c.Listeners[0].Routes = append(c.Listeners[0].Routes, "faults/more")
	})
}

// runs returns the condition that a config is in force.
func (b *bench) runs(c config.Config) func(context.Context) error {
	want := c.Revision()
	return func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && st.Revision != want {
			err = fmt.Errorf("revision %q is in force, want %q; problem %q", st.Revision, want, st.Problem)
		}
		return err
	}
}

// settled waits until only the sessions of the live calls are left.
func (b *bench) settled(live int) { b.t.Helper(); b.await("sessions have settled", b.sessions(live)) }

// admits returns the condition that a new call succeeds.
func (b *bench) admits(o call.Options) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := call.Start(ctx, o)
		if err == nil {
			c.End(0)
		}
		return err
	}
}

// credentials are rotated during calls.
func TestR14Credentials(t *testing.T) {
	b := newBench(t)
	b.run()
	begin := func(c config.Config) (all []call.Options) { // a static credential and an ephemeral one
		static := b.options(call.UDP)
		static.Password = string(c.Auth.Credentials[config.KeyPassword])
		minted, err := c.Auth.Authority().Mint("bob", time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		ephemeral := b.options(call.TCP)
		ephemeral.Username, ephemeral.Password = minted.Username, string(minted.Password)
		return []call.Options{static, ephemeral}
	}
	former := begin(b.config)
	var live calls
	for _, o := range former {
		live = append(live, b.call(o))
	}
	next := b.changed(func(c *config.Config) {
		c.Auth.Credentials[config.KeyPassword], c.Auth.Credentials[config.KeySecret] = "another-password", "another-secret"
	})
	b.write(next)
	began := time.Now()
	for _, o := range begin(next) {
		b.within(time.Second, "the new credential is accepted", b.admits(o))
	}
	t.Logf("new credentials accepted after %s", time.Since(began))
	for _, o := range former {
		c, err := call.Start(t.Context(), o)
		if !errors.Is(err, call.ErrRefused) || !strings.Contains(err.Error(), "401") {
			t.Errorf("%s: the previous credential can allocate: %v", o.Network, err)
		}
		if err == nil {
			c.End(0)
		}
	}
	b.renew(live)
	b.settled(len(live))
	b.unharmed(live, silence)
	b.await("Refresh requests with the previous credential succeed", b.sessions(0))
}

// endpoints change fifty times per second. Calls to endpoints that stay are not disturbed.
func TestR15Churn(t *testing.T) {
	const (
		rate   = 50
		lasts  = 10 * time.Second
		window = 100 // endpoints in addition to those with calls
	)
	b := newBench(t)
	var kept, gone []netip.AddrPort
	for range 4 {
		// A permission covers an address with all ports (RFC 8656 §9), so removed endpoints need an address of their
		// own.
		kept = append(kept, bedtest.Echo(t, netip.MustParseAddr(bed.Loopback)))
		gone = append(gone, bedtest.Echo(t, netip.MustParseAddr("127.0.0.2")))
	}
	replaced := 0
	render := func(peers ...netip.AddrPort) config.Config {
		return b.changed(func(c *config.Config) {
			c.Clusters[0].Endpoints = nil
			for _, p := range peers {
				c.Clusters[0].Endpoints = append(c.Clusters[0].Endpoints, endpoint(p))
			}
			for i := range window {
				n := replaced + i
				c.Clusters[0].Endpoints = append(c.Clusters[0].Endpoints, fmt.Sprintf("10.0.%d.%d", n/250, n%250))
			}
		})
	}
	h, source := serving(t, render(slices.Concat(kept, gone)...))
	b.start(h.url())
	b.await("ready", b.runs(render(slices.Concat(kept, gone)...)))
	to := func(peers []netip.AddrPort) (all calls) {
		for i, peer := range peers {
			o := b.options([]call.Network{call.UDP, call.TCP, call.TLS, call.DTLS}[i])
			o.Peer = peer
			all = append(all, b.call(o))
		}
		return all
	}
	staying, leaving := to(kept), to(gone)

	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	var removed time.Time
	for began := time.Now(); time.Since(began) < lasts; <-tick.C {
		replaced++
		if time.Since(began) < lasts/2 {
			source.Publish(render(slices.Concat(kept, gone)...))
			continue
		}
		source.Publish(render(kept...))
		if removed.IsZero() {
			removed = time.Now()
		}
	}
	b.within(time.Second, "the last config is in force", b.runs(render(kept...)))
	b.cutOff(leaving, removed)
	b.unharmed(staying, silence)
}

// cutOff checks that calls receive no echo later than a second after a moment, and that their permissions are refused.
func (b *bench) cutOff(all calls, since time.Time) {
	b.t.Helper()
	for i, c := range all {
		if late := c.LastEcho().Sub(since) - b.pulse.Worst(); late > time.Second {
			b.t.Errorf("call %d receives an echo %s after its route was removed", i, late)
		}
		if err := c.Renew(); !errors.Is(err, call.ErrRefused) || !strings.Contains(err.Error(), "403") {
			b.t.Errorf("call %d: permission: %v, want 403", i, err)
		}
		c.End(0)
	}
}

// T-05: calls whose route is removed are cut within a second, over every transport.
func TestT05VanishedRoutes(t *testing.T) {
	for name, change := range map[string]func(*config.Config){
		"endpoint gone": func(c *config.Config) { c.Clusters[0].Endpoints = []string{"192.0.2.1"} },
		"cluster gone":  func(c *config.Config) { c.Clusters = nil },
		"route gone": func(c *config.Config) {
			for i := range c.Listeners {
				c.Listeners[i].Routes = nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.run()
			live := b.calls(1)
			next := b.changed(change)
			b.write(next)
			began := time.Now()
			b.inForce(next)
			<-time.After(time.Until(began.Add(1500 * time.Millisecond))) // no event signals that echoes have stopped
			b.cutOff(live, began)
		})
	}
}

// configs of an older and of a newer release are applied, without their unknown fields.
func TestR29Skew(t *testing.T) {
	b := newBench(t)
	b.run()
	for name, change := range map[string]func(document map[string]any){
		"older": func(d map[string]any) {
			d["version"] = "v1alpha1"
			auth := d["auth"].(map[string]any)
			auth["type"] = "timewindowed"
			for _, l := range d["listeners"].([]any) {
				l.(map[string]any)["min_relay_port"], l.(map[string]any)["max_relay_port"] = 10000, 20000
			}
		},
		"newer": func(d map[string]any) {
			d["tomorrow"] = map[string]any{"a": []int{1}}
			d["admin"].(map[string]any)["tomorrow"] = true
			d["auth"].(map[string]any)["tomorrow"] = "x"
			d["listeners"].([]any)[0].(map[string]any)["tomorrow"] = 1
			d["clusters"].([]any)[0].(map[string]any)["tomorrow"] = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			live := b.calls(1, call.UDP)
			known := b.changed(func(c *config.Config) { c.Auth.Realm, c.Admin.UserQuota = name+".example.org", 10 })
			var document map[string]any
			if err := json.Unmarshal(known.Canonical(), &document); err != nil {
				t.Fatal(err)
			}
			change(document)
			data, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			b.writeRaw(data)
			b.inForce(known)
			st := b.status()
			want := map[string]int{"older": 0, "newer": 5}[name]
			if st.Problem != "" || st.Auth.Realm != known.Auth.Realm || len(st.Unknown) != want {
				t.Errorf(
					"problem %q, realm %q, unknown fields %q, want %d of them", st.Problem, st.Auth.Realm, st.Unknown,
					want,
				)
			}
			if lost, _ := b.calls(1).end(); lost > 0 {
				t.Errorf("%d datagrams lost", lost)
			}
			b.unharmed(live, silence)
		})
	}
}

// a state folder that is not writable is reported, and configs are applied anyway.
func TestR32StateFolder(t *testing.T) {
	for name, mount := range map[string]string{
		"full":      `mount -t tmpfs -o size=4k tmpfs "$0" && head -c 4096 /dev/zero >"$0/full"`,
		"read-only": `mount -t tmpfs -o ro tmpfs "$0"`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			h, source := serving(t, b.config)
			state := t.TempDir()
			b.startAs(bed.Command{
				Path: "/usr/bin/unshare",
				Args: []string{"-m", "/bin/sh", "-c", mount + ` && exec "$@"`, state, stunnerd},
			},
				h.url(), "--state-dir", state)
			b.inForce(b.config)
			b.await("the log warns", func(context.Context) error {
				if !strings.Contains(b.process.Output(), `level=WARN msg="cannot save the last good config"`) {
					return errors.New("no warning")
				}
				return nil
			})
			live := b.calls(1)
			next := b.changed(func(c *config.Config) { c.Auth.Realm = "other.example.org" })
			source.Publish(next)
			b.inForce(next)
			if st := b.status(); st.Problem != "" || st.Status != "READY" {
				t.Errorf("status %s, problem %q", st.Status, st.Problem)
			}
			b.unharmed(live, silence)
		})
	}
}
