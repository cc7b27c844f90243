// Package usage tests that the auth service adds up the usage of the pods of a Gateway: with the built programs, an API
// server, and calls of several users at each pod.
package usage

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

func TestMain(m *testing.M) {
	harnesstest.Parallel(1)
	os.Exit(netns.Main(m.Run, netns.UsualSendBuffers))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// policy has the API keys of a platform that reads the usage of its users, of a user, and of a web app. Each key equals
// the name of its entry.
func policy() []byte {
	hash := func(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }
	return fmt.Appendf(nil, `version: v1
keys:
- {name: platform, hashes: [%q], user: "{username}", usage: any}
- {name: ada, hashes: [%q], user: ada, usage: own}
- {name: app, hashes: [%q], user: "{username}"}
`, hash("platform"), hash("ada"), hash("app"))
}

// count is a number of datagrams and their bytes.
type count struct{ Bytes, Packets int }

// figures are the figures of a user, a route or a Gateway, or of all.
type figures struct {
	User, Route, Gateway string
	Sessions             int
	Sent, Received       count
}

func (f *figures) add(g figures) {
	f.Sessions += g.Sessions
	f.Sent.Bytes, f.Sent.Packets = f.Sent.Bytes+g.Sent.Bytes, f.Sent.Packets+g.Sent.Packets
	f.Received.Bytes, f.Received.Packets = f.Received.Bytes+g.Received.Bytes, f.Received.Packets+g.Received.Packets
}

// answer is the answer of GET /v1/usage.
type answer struct {
	Since                   time.Time
	Total                   figures
	Entries                 []figures
	PodsAsked, PodsAnswered int
	Complete, Truncated     bool
}

// caller is a call of a user at a pod.
type caller struct {
	*env.Call
	user     string
	at, size int
	// before are the counts of the call when its pod was killed. restored reports that the pod was killed.
	before   call.Stats
	restored bool
}

// figures returns the expected counts of the pod of the call.
func (c *caller) figures() figures {
	s, size := c.Stats(), c.size
	sent, received := s.Sent-c.before.Sent, s.Received-c.before.Received
	f := figures{Sessions: 1, Sent: count{size * sent, sent}, Received: count{size * received, received}}
	if c.restored {
		f.Sessions = 0
	}
	return f
}

// product is a Gateway with three pods, and an auth service with the policy.
type product struct {
	*env.Env
	t     *testing.T
	api   string
	pods  []env.Dataplane
	calls []*caller
}

func start(t *testing.T) *product {
	t.Helper()
	kube, err := cluster.Start(t.Context(), cluster.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, kube.Stop()) })
	shape, err := env.ParseShape("udp,3pods,1gateway,ipv4,keeps,apiserver,ephemeral,userspace,nothing")
	must(t, err)
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	must(t, os.WriteFile(file, policy(), 0o600))
	p := &product{t: t}
	p.Env, err = env.New(t.Context(), env.Options{
		Shape: shape, Number: 1, Cluster: kube, Dir: dir, Logf: t.Logf, AuthArguments: []string{"--policy=" + file},
	})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	must(t, p.Start(t.Context()))
	must(t, p.AwaitReady(t.Context()))
	plane, err := p.ControlPlane(t.Context())
	must(t, err)
	p.api = plane.Auth
	must(t, p.Await(t.Context(), "three pods", func(context.Context) (err error) {
		if p.pods, err = p.Gateways[0].Dataplanes(); err == nil && len(p.pods) != 3 {
			err = fmt.Errorf("%d pods", len(p.pods))
		}
		return err
	}))
	return p
}

// dial starts a call of a user at a pod.
func (p *product) dial(user string, at int) {
	p.t.Helper()
	const size = 200
	port := uint16(20_000 + len(p.calls))
	voice := env.Stream{Size: size, Every: 10 * time.Millisecond}
	c, err := p.DialFrom(p.t.Context(), nil, p.Listeners()[0], port, p.pods[at], user, voice)
	must(p.t, err)
	p.calls = append(p.calls, &caller{Call: c, user: user, at: at, size: size})
}

// talk makes all calls send, and pauses them.
func (p *product) talk() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), env.Limit)
	defer cancel()
	for _, c := range p.calls {
		must(p.t, c.AwaitMore(ctx, 50))
	}
	for _, c := range p.calls {
		must(p.t, c.Pause(ctx))
	}
}

// ask sends a request for usage with an API key.
func (p *product) ask(ctx context.Context, key, query string) (status int, a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.api+"/v1/usage"+query, nil)
	if err != nil {
		return 0, a, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	status, body, err := harness.Do(req)
	if err == nil && status == http.StatusOK {
		err = json.Unmarshal(body, &a)
	}
	return status, a, err
}

// expect waits until the usage by user equals the counts of the calls at some pods, with the numbers of pods. Packets
// are counted a short time after they were forwarded.
func (p *product) expect(what string, asked, answered int, pods ...int) (a answer) {
	p.t.Helper()
	var total figures
	users := map[string]figures{}
	for _, c := range p.calls {
		if slices.Contains(pods, c.at) {
			f := c.figures()
			total.add(f)
			of := users[c.user]
			of.User = c.user
			of.add(f)
			users[c.user] = of
		}
	}
	must(p.t, p.Await(p.t.Context(), what, func(ctx context.Context) error {
		status, got, err := p.ask(ctx, "platform", "")
		if a = got; err != nil || status != http.StatusOK {
			return errors.Join(fmt.Errorf("status %d", status), err)
		}
		byUser := map[string]figures{}
		for _, e := range got.Entries {
			byUser[e.User] = e
		}
		if got.Total != total || !maps.Equal(byUser, users) || got.PodsAsked != asked || got.PodsAnswered != answered ||
			got.Complete != (asked == answered) || got.Truncated {
			return fmt.Errorf("%+v, want %+v in total and %+v of %d of %d pods", got, total, users, answered, asked)
		}
		return nil
	}))
	p.t.Logf("%s: %d of %d pods, %d sessions of %d users, %d packets and %d bytes sent, %d and %d received", what,
		answered, asked, total.Sessions, len(users), total.Sent.Packets, total.Sent.Bytes, total.Received.Packets,
		total.Received.Bytes)
	return a
}

// TestUsageOfThreePods: the usage of each user equals the traffic of its calls at three pods. If a pod does not
// answer, the sum does not contain it, and the answer reports that. A pod that was killed continues its sessions, and
// counts again from then on.
func TestUsageOfThreePods(t *testing.T) {
	p := start(t)
	for pod := range p.pods {
		p.dial("ada", pod)
		p.dial("ada", pod)
		p.dial([]string{"bob", "eve", "bob"}[pod], pod)
	}
	p.talk()
	all := p.expect("three pods", 3, 3, 0, 1, 2)

	ada := all.Entries[slices.IndexFunc(all.Entries, func(f figures) bool { return f.User == "ada" })]
	for _, c := range []struct {
		key, query string
		status     int
		want       figures
	}{
		{"ada", "", http.StatusOK, ada},
		{"ada", "?user=bob", http.StatusForbidden, figures{}},
		{"app", "", http.StatusForbidden, figures{}},
		{"platform", "?user=ada", http.StatusOK, ada},
		{"platform", "?by=gateway", http.StatusOK, with(all.Total, func(f *figures) { f.Gateway = p.Gateways[0].ID() })},
		{"platform", "?by=route", http.StatusOK, with(all.Total, func(f *figures) {
			f.Route, f.Sessions = p.Gateways[0].ID()+"-first", 0
		})},
	} {
		status, got, err := p.ask(t.Context(), c.key, c.query)
		must(t, err)
		if status != c.status || status == http.StatusOK && (len(got.Entries) != 1 || got.Entries[0] != c.want) {
			t.Errorf("%s with key %s: %d, %+v, want %+v", c.query, c.key, status, got, c.want)
		}
	}

	must(t, p.pods[2].Signal(syscall.SIGSTOP))
	p.expect("a pod that does not answer", 3, 2, 0, 1)
	must(t, p.pods[2].Signal(syscall.SIGCONT))
	p.expect("the pod answers again", 3, 3, 0, 1, 2)

	killed := time.Now()
	must(t, p.pods[0].Crash())
	for _, c := range p.calls {
		if c.at == 0 {
			c.before, c.restored = c.Stats(), true
		}
	}
	again := p.expect("a pod that was killed is back", 3, 3, 0, 1, 2)
	if again.Since.Before(killed.Truncate(time.Minute)) {
		t.Errorf("the pods have counted since %s, but one was killed at %s", again.Since, killed)
	}
	for _, c := range p.calls {
		c.Resume()
	}
	p.talk()
	p.expect("more calls", 3, 3, 0, 1, 2)
	for _, c := range p.calls {
		c.Resume()
	}
}

// TestUsageInAFolder: the operator of a folder answers too. A service that reads its configs from a file has no
// operator.
func TestUsageInAFolder(t *testing.T) {
	shape, err := env.ParseShape("udp,1pod,1gateway,ipv4,host,folder,ephemeral,userspace,nothing")
	must(t, err)
	p := &product{t: t}
	p.Env, err = env.New(t.Context(), env.Options{Shape: shape, Number: 2, Dir: t.TempDir(), Logf: t.Logf})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	must(t, p.Start(t.Context()))
	must(t, p.AwaitReady(t.Context()))
	file := filepath.Join(p.Dir, "policy.yaml")
	must(t, os.WriteFile(file, policy(), 0o600))
	restart := func(flags ...string) {
		must(t, p.Host().Auth.Kill())
		must(t, p.StartAuth(t.Context(), append(flags, "--policy="+file)...))
		p.api = p.Host().AuthURL
	}
	restart()
	l := p.Listeners()[0]
	for _, user := range []string{"ada", "bob"} {
		c, err := p.Dial(t.Context(), l, l.Addresses()[0], l.Peers()[0], user)
		must(t, err)
		p.calls = append(p.calls, &caller{Call: c, user: user, size: 160}) // the default size of a datagram
	}
	p.talk()
	p.expect("a folder", 1, 1, 0)
	for _, c := range p.calls {
		c.Resume()
	}
	config := filepath.Join(p.Dir, "gateway.json")
	must(t, os.WriteFile(config, gateway, 0o600))
	restart("--config="+config, "--discovery-token-file=")
	if status, _, err := p.ask(t.Context(), "platform", ""); status != http.StatusNotImplemented {
		t.Errorf("without an operator: %d, %v", status, err)
	}
}

// gateway is a dataplane config.
var gateway = []byte(`{
	"version": "v1", "admin": {"name": "media/edge"},
	"auth": {"type": "ephemeral", "credentials": {"secret": "s3cret"}},
	"listeners": [{
		"name": "media/edge/udp", "protocol": "TURN-UDP", "port": 3478, "public_address": "192.0.2.9", "public_port": 3478
	}]
}`)

func with(f figures, change func(*figures)) figures {
	change(&f)
	return f
}
