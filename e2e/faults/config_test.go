package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// tooLarge is the size above which the dataplane closes the connection.
const tooLarge = 8 << 20

// after an invalid config of any kind, the previous config stays in force, with its certificate.
func TestInvalidConfigLeavesThePreviousOneInForce(t *testing.T) {
	t.Parallel()
	d := newDataplane(t)
	source := &documents{next: make(chan []byte)}
	d.start(harness.Command{Path: stunnerd}, newSource(t, harness.Loopback, source).url())
	source.next <- d.config.Canonical()
	d.await("in force", d.inForce(d.config))
	live := d.calls()
	other, _, err := harness.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	spoiled := func(change func(*config.Config)) []byte { return d.changed(change).Canonical() }
	for name, c := range map[string]struct {
		document        []byte
		reason, problem string
	}{
		"text":         {[]byte("hello"), "invalid", "parse config"},
		"empty":        {nil, "unreadable", "parse config"},
		"invalid JSON": {[]byte(`{"version":"v1","admin":`), "unreadable", "parse config"},
		"null":         {[]byte("null"), "invalid", ""},
		"list":         {[]byte("[]"), "invalid", "parse config"},
		"deep list":    {bytes.Repeat([]byte("["), 10_000), "unreadable", ""},
		"wrong type":   {[]byte(`{"version":"v1","admin":{"name":7}}`), "invalid", "parse config"},
		"unknown version": {
			bytes.Replace(d.config.Canonical(), []byte(`"version":"v1"`), []byte(`"version":"v9"`), 1),
			"invalid", "version",
		},
		"duplicate listener": {
			spoiled(func(c *config.Config) { c.Listeners[1].Name = c.Listeners[0].Name }),
			"invalid", "listeners[1].name",
		},
		"duplicate socket": {
			spoiled(func(c *config.Config) { c.Listeners[3].Port = c.Listeners[0].Port }),
			"invalid", "listeners[3].port",
		},
		"certificate of another key": {
			spoiled(func(c *config.Config) { c.Listeners[2].Cert = encoded(other) }), "invalid", "listeners[2]",
		},
		"empty secret": {
			spoiled(func(c *config.Config) { delete(c.Auth.Credentials, config.KeySecret) }), "invalid",
			"auth.credentials.secret",
		},
		"config of another Gateway": {
			spoiled(func(c *config.Config) { c.Admin.Name = "faults/window" }), "unreadable", "faults/window",
		},
		"10 MB": {bytes.Repeat([]byte(" "), 10<<20), "unreadable", "bytes"},
		"5 MB":  {bytes.Repeat([]byte(" "), 5<<20), "unreadable", ""},
		"too many clusters": {
			spoiled(func(c *config.Config) { c.Clusters = manyClusters(10_001) }), "invalid", "clusters",
		},
	} {
		t.Run(name, func(t *testing.T) {
			const metric = "stunner_config_rejected_total"
			before, rejected, connections := d.inside(), d.metric(metric), source.connections.Load()
			ofReason := d.metric(metric, c.reason)
			source.next <- c.document
			d.await("the error is reported", d.status(func(st inspection.Status) bool {
				return st.Problem != "" && strings.Contains(st.Problem, c.problem)
			}))
			if n, r := d.metric(metric), d.metric(metric, c.reason); n != rejected+1 || r != ofReason+1 {
				t.Errorf("%g configs rejected, %g as %s; want one more than %g, %g", n, r, c.reason, rejected, ofReason)
			}
			if after := d.inside(); after != before {
				t.Errorf("the running config has changed:\n%s\n%s", before, after)
			}
			if len(c.document) > tooLarge {
				d.await("the dataplane reconnects", func(context.Context) error {
					if source.connections.Load() == connections {
						return fmt.Errorf("%d connections", connections)
					}
					return nil
				})
			}
			source.next <- d.config.Canonical()
			d.await("the problem is over", d.status(func(st inspection.Status) bool { return st.Problem == "" }))
		})
	}
	d.undisturbed(append(live, d.calls()...))
}

// inside returns the running config from the status, without counters.
func (d *dataplane) inside() string {
	d.t.Helper()
	var running struct {
		Status, Revision string
		Auth             config.Auth
		Listeners        []config.Listener
		Clusters         []config.Cluster
	}
	_, body, err := harness.Get(d.t.Context(), d.health()+"/status")
	if err = errors.Join(err, json.Unmarshal(body, &running)); err != nil {
		d.t.Fatal(err)
	}
	return fmt.Sprintf("%+v", running)
}

// documents is a config discovery server that sends valid or invalid documents to one dataplane.
type documents struct {
	next        chan []byte
	connected   sync.Mutex // used by one connection at a time
	connections atomic.Int64
}

func (s *documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.connected.Lock()
	defer s.connected.Unlock()
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	s.connections.Add(1)
	ctx, cancel := context.WithCancel(r.Context())
	go func() {
		defer cancel()
		for err := error(nil); err == nil; { // Read also handles reports and pings
			_, _, err = conn.Read(ctx)
		}
	}()
	for {
		select {
		case document := <-s.next:
			// The dataplane closes the connection while it reads a document that is too long.
			_ = conn.Write(ctx, websocket.MessageText, document)
		case <-ctx.Done():
			return
		}
	}
}

// a config of the maximum size is applied, and calls are not disturbed while it is read.
func TestLargestConfigDisturbsNoCall(t *testing.T) {
	d := running(t)
	live := d.calls()
	next := d.changed(func(c *config.Config) { c.Clusters = append(c.Clusters, manyClusters(9_999)...) })
	d.write(next)
	d.await("in force", d.inForce(next))
	d.undisturbed(live)
}

func manyClusters(n int) (all []config.Cluster) {
	for i := range n {
		all = append(all, config.Cluster{
			Name: fmt.Sprintf("faults/many-%d", i), Type: config.Static, Protocol: "UDP",
			Endpoints: []string{fmt.Sprintf("10.%d.%d.1", i/250, i%250)},
		})
	}
	return all
}

// configs that alternate a hundred times per second are applied at a bounded rate, the last config is in force in
// the end, and nothing leaks.
func TestFlappingConfigsAreAppliedAtABoundedPace(t *testing.T) {
	t.Parallel()
	const lasts = 3 * time.Second
	d := newDataplane(t)
	source := newPublisher(t, harness.Loopback, d.config)
	d.start(harness.Command{Path: stunnerd}, source.url())
	d.await("in force", d.inForce(d.config))
	live := d.calls()
	other := d.differing()
	d.await("sessions have settled", d.sessions(len(live)))
	goroutines, applied := d.metric("go_goroutines"), d.metric("stunner_config_applied_total")
	files := d.files()

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for i := 0; time.Since(began) < lasts; i++ {
		source.Publish([]config.Config{other, d.config}[i%2])
		<-tick.C
	}
	lasted := time.Since(began)
	source.Publish(other)
	source.Publish(d.config)
	d.within(time.Second, "the last config is in force", d.inForce(d.config))
	applies := d.metric("stunner_config_applied_total") - applied
	if most := 10*lasted.Seconds() + 2; applies > most || applies < 3 {
		t.Errorf("%g configs applied in %s, want 3 to %g", applies, lasted, most)
	}
	d.awaitEchoes(live...)
	d.await("sessions have settled", d.sessions(len(live)))
	d.await("number of files and goroutines is not larger than before", func(context.Context) error {
		// Both numbers include what serves the request for the metrics.
		if f, g := d.files(), d.metric("go_goroutines"); f > files || g > goroutines+2 {
			return fmt.Errorf("%d files, %g goroutines; before %d, %g", f, g, files, goroutines)
		}
		return nil
	})
	d.undisturbed(live)
}

// differing returns a config that differs in all parts that are costly to change: sockets, policies, routes.
func (d *dataplane) differing() config.Config {
	d.t.Helper()
	port := harnesstest.Port(d.t)
	return d.changed(func(c *config.Config) {
		c.Auth.Realm, c.Auth.Credentials[config.KeySecret] = "other.example.org", "another-one"
		c.Admin.UserQuota = 100
		c.Clusters = append(c.Clusters, config.Cluster{
			Name: "faults/more", Type: config.Static, Protocol: "UDP", Endpoints: []string{"192.0.2.0/24"},
		})
		for _, p := range []config.Protocol{config.TURNUDP, config.TURNTCP} {
			c.Listeners = append(c.Listeners, config.Listener{
				Name: gateway + "/more-" + string(p), Protocol: p, Address: harness.Loopback, Port: port,
				Routes: []string{"faults/more"},
			})
		}
		c.Listeners[0].Routes = append(c.Listeners[0].Routes, "faults/more")
	})
}

// files returns the number of open descriptors of the process.
func (d *dataplane) files() int {
	d.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.process.PID()))
	if err != nil {
		d.t.Fatal(err)
	}
	return len(list)
}

// R-15, T-05: while endpoints change twenty times per second, calls to endpoints that stay are not disturbed, and calls
// to removed endpoints are cut within a second, over every transport.
func TestOnlyCallsToRemovedEndpointsEnd(t *testing.T) {
	t.Parallel()
	const (
		lasts = 2 * time.Second // once with all endpoints, and once without the removed endpoints
		more  = 100             // endpoints in addition to the endpoints with calls
	)
	d := newDataplane(t)
	var kept, gone []netip.AddrPort
	for range networks {
		// A permission covers an address with all ports (RFC 8656 §9), so removed endpoints need an address of their
		// own.
		kept = append(kept, harnesstest.Echo(t, netip.MustParseAddr(harness.Loopback)))
		gone = append(gone, harnesstest.Echo(t, netip.MustParseAddr("127.0.0.2")))
	}
	replaced := 0
	with := func(peers ...netip.AddrPort) config.Config {
		return d.changed(func(c *config.Config) {
			c.Clusters[0].Endpoints = nil
			for _, p := range peers {
				c.Clusters[0].Endpoints = append(c.Clusters[0].Endpoints, endpoint(p))
			}
			for n := replaced; n < replaced+more; n++ {
				c.Clusters[0].Endpoints = append(c.Clusters[0].Endpoints, fmt.Sprintf("10.0.%d.%d", n/250, n%250))
			}
		})
	}
	first := with(slices.Concat(kept, gone)...)
	source := newPublisher(t, harness.Loopback, first)
	d.start(harness.Command{Path: stunnerd}, source.url())
	d.await("ready", d.inForce(first))
	to := func(peers []netip.AddrPort) (all []*call.Call) {
		for i, peer := range peers {
			o := d.options(networks[i])
			o.Peer = peer
			all = append(all, d.call(o))
		}
		return all
	}
	staying, leaving := to(kept), to(gone)

	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	change := func(peers ...netip.AddrPort) {
		for began := time.Now(); time.Since(began) < lasts; <-tick.C {
			replaced++
			source.Publish(with(peers...))
		}
	}
	change(slices.Concat(kept, gone)...)
	removed := time.Now()
	change(kept...)
	d.await("the last config is in force", d.inForce(with(kept...)))
	d.cutOff(leaving, removed)
	d.undisturbed(staying)
}
