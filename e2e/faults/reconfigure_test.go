package faults

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
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

// certificates are rotated during calls. One of the new pairs is invalid.
func TestR12Certificates(t *testing.T) {
	const rotations = 20
	b := newBench(t)
	b.run()
	live := b.calls(2, call.TLS, call.DTLS)
	roots := x509.NewCertPool()
	var slowest time.Duration
	for i := range rotations {
		if i == rotations/2 {
			b.brokenPair(roots)
		}
		roots = b.rotate()
		began := time.Now()
		for _, network := range []call.Network{call.TLS, call.DTLS} {
			b.within(
				time.Second, fmt.Sprintf("new %s handshakes get certificate %d", network, i), b.shows(network, roots),
			)
		}
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("new certificate at both listeners after at most %s", slowest)
	b.unharmed(live, silence)
}

// rotate gives the secure listeners a new certificate, and returns a pool that trusts only this one.
func (b *bench) rotate() *x509.CertPool {
	b.t.Helper()
	chain, private, err := bed.Certificate()
	if err != nil {
		b.t.Fatal(err)
	}
	b.show(encoded(chain), credential.Secret(encoded(private)))
	b.write(b.config)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(chain)
	return roots
}

func (b *bench) show(cert string, key credential.Secret) {
	for i, l := range b.config.Listeners {
		if l.Protocol.Secure() {
			b.config.Listeners[i].Cert, b.config.Listeners[i].Key = cert, key
		}
	}
}

// shows returns the condition that a new call over the transport gets a certificate that roots trust.
func (b *bench) shows(network call.Network, roots *x509.CertPool) func(context.Context) error {
	o := b.options(network)
	o.Roots = roots
	return b.admits(o)
}

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

// brokenPair writes a certificate with a key that does not match. The status reports it, and the previous certificate
// stays in use.
func (b *bench) brokenPair(roots *x509.CertPool) {
	b.t.Helper()
	cert, _ := b.certificate()
	broken := b.config.Clone()
	for i, l := range broken.Listeners {
		if l.Protocol.Secure() {
			broken.Listeners[i].Cert = cert
		}
	}
	running := b.status().Revision
	b.write(broken)
	b.await("the status reports the mismatch", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil &&
			(st.Revision != running || !strings.Contains(st.Problem, ".cert") && !strings.Contains(
				st.Problem, ".key",
			)) {
			err = fmt.Errorf("revision %q, problem %q", st.Revision, st.Problem)
		}
		return err
	})
	for _, network := range []call.Network{call.TLS, call.DTLS} {
		b.await("the previous certificate is in use", b.shows(network, roots))
	}
}

// realm, port and protocol change during calls, and no session is lost.
func TestR13Restarts(t *testing.T) {
	t.Run("realm", func(t *testing.T) {
		b := newBench(t)
		b.run()
		live := b.calls(1)
		b.apply(b.changed(func(c *config.Config) { c.Auth.Realm = "other.example.org" }))
		if got := b.realm(); got != "other.example.org" {
			t.Errorf("new clients get the realm %q", got)
		}
		b.renew(live) // with the previous realm
		b.unharmed(live, silence)
		b.await("all sessions have ended by their Refresh requests", b.sessions(0))
	})
	for name, change := range map[string]func(port int, l *config.Listener){
		"port":     func(port int, l *config.Listener) { l.Port = port },
		"protocol": func(_ int, l *config.Listener) { l.Protocol = config.TURNTCP },
		"both":     func(port int, l *config.Listener) { l.Port, l.Protocol = port, config.TURNTCP },
	} {
		t.Run(name, func(t *testing.T) { replacesUDP(t, change) })
	}
}

// replacesUDP changes the socket of the UDP listener: the new one serves, the old one drains.
func replacesUDP(t *testing.T, change func(port int, l *config.Listener)) {
	b := newBench(t)
	// Without the TCP listener, which would conflict when the UDP listener changes to TCP on the same port.
	b.config.Listeners = slices.DeleteFunc(
		b.config.Listeners, func(l config.Listener) bool { return l.Protocol != config.TURNUDP },
	)
	b.run()
	before, live := b.options(call.UDP), b.calls(3, call.UDP)
	change(freePorts(t, 1)[0], &b.config.Listeners[0])
	b.apply(b.config)

	after := b.options(call.UDP)
	after.Network = call.Network(strings.ToLower(strings.TrimPrefix(string(b.config.Listeners[0].Protocol), "TURN-")))
	if lost, _ := (calls{b.call(after)}).end(); lost > 0 {
		t.Errorf("call through the new listener: %d datagrams lost", lost)
	}
	if c, err := call.Start(t.Context(), before); !errors.Is(err, call.ErrRefused) {
		t.Errorf("the old listener accepts a new call: %v", err)
		if err == nil {
			c.End(0)
		}
	}
	b.renew(live)
	b.unharmed(live, silence)
	b.await("the old listener is closed with its last session", func(context.Context) error {
		socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(before.Gateway.Port())})
		if err != nil {
			return err
		}
		return socket.Close()
	})
}

// renew makes each call send an authenticated request.
func (b *bench) renew(all calls) {
	b.t.Helper()
	for _, c := range all {
		if err := c.Renew(); err != nil {
			b.t.Errorf("live session is refused: %v", err)
		}
	}
}

// realm returns the realm in a 401 response.
func (b *bench) realm() string {
	b.t.Helper()
	conn, err := net.Dial("udp", b.at(call.UDP).String())
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	request := stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest),
		stun.RawAttribute{Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0}})
	client, err := stun.NewClient(conn)
	if err != nil {
		b.t.Fatal(err)
	}
	defer client.Close()
	var realm stun.Realm
	err = client.Do(request, func(e stun.Event) {
		if err = e.Error; err == nil {
			err = realm.GetFrom(e.Message)
		}
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return realm.String()
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

// if another process uses a port of the first config, the dataplane is not ready, and reports the listener and
// the error. It becomes ready when the port is free. A port conflict in a later config does not make it unready,
// because that would end its calls.
func TestR10TakenPortAtStart(t *testing.T) {
	other, b := newBench(t), newBench(t)
	other.run()
	b.config.Listeners[0].Port = other.config.Listeners[0].Port
	b.file = filepath.Join(t.TempDir(), "config.json")
	b.write(b.config)
	b.start(b.file)
	b.await("/ready reports the listener and the error", func(ctx context.Context) error {
		code, body, err := bed.Get(ctx, b.health()+"/ready")
		for _, words := range []string{
			`"message":"stunnerd not ready: `, listenerName(call.UDP), "address already in use",
		} {
			if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(string(body), words)) {
				err = fmt.Errorf("/ready: status %d %s, want it to contain %q", code, body, words)
			}
		}
		return err
	})
	if st := b.status(); st.Status != "NOT-READY" || st.Failures[listenerName(call.UDP)] == "" {
		t.Errorf("status %s, failures %v", st.Status, st.Failures)
	}
	if err := other.process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.within(patience, "ready when the port is free", bed.Answers(b.health()+"/ready", http.StatusOK))
	live := b.calls(1)
	taken, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	b.write(b.changed(func(c *config.Config) { c.Listeners[0].Port = taken.LocalAddr().(*net.UDPAddr).Port }))
	b.await("the status names the listener", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && (st.Failures[listenerName(call.UDP)] == "" || st.Status != "READY") {
			err = fmt.Errorf("status %s, failures %v", st.Status, st.Failures)
		}
		return err
	})
	b.probe()
	b.unharmed(live, silence)
}

// a port that another process uses affects only its listener.
func TestR10TakenPort(t *testing.T) {
	b := newBench(t)
	b.run()
	live := b.calls(1)
	taken, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	former := b.options(call.UDP)
	next := b.changed(func(c *config.Config) {
		c.Listeners[0].Port = taken.LocalAddr().(*net.UDPAddr).Port
		c.Listeners[1].Port = freePorts(t, 1)[0]
		c.Auth.Credentials[config.KeyPassword] = "another-password"
	})
	b.apply(next)
	st := b.status()
	if failed := slices.Collect(maps.Keys(st.Failures)); len(failed) != 1 || failed[0] != listenerName(call.UDP) {
		t.Errorf("failures %v, want one of %s", st.Failures, listenerName(call.UDP))
	}
	if got := st.Listeners[0].Port; got != int(former.Gateway.Port()) {
		t.Errorf("the status shows the failed listener at port %d", got)
	}
	b.config.Listeners[1].Port = next.Listeners[1].Port
	// the first listener at its previous port, the others at their new ports
	for _, network := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
		o := b.options(network)
		o.Password = "another-password"
		if lost, _ := (calls{b.call(o)}).end(); lost > 0 {
			t.Errorf("%s: %d datagrams lost", network, lost)
		}
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	b.await("the listener moves when the port is free", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && (len(st.Failures) > 0 || st.Problem != "") {
			err = fmt.Errorf("failures %v, problem %q", st.Failures, st.Problem)
		}
		return err
	})
	b.config.Listeners[0].Port = next.Listeners[0].Port
	o := b.options(call.UDP)
	o.Password = "another-password"
	b.await("the listener serves at its new port", b.admits(o))
	b.unharmed(live, silence)
}
