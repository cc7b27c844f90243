package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that the test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func named(id string) config.Config {
	c := oslo()
	c.Admin.Name = id
	return c
}

func ids(d *Directory) []string {
	var out []string
	for _, g := range d.Select(Filter{}) {
		out = append(out, g.ID())
	}
	return out
}

func TestDirectoryIsSortedForAnyOrderOfEvents(t *testing.T) {
	d := NewDirectory("", time.Now, slog.New(slog.DiscardHandler))
	for _, id := range []string{"b/a", "a/z", "b-c/a", "a/b", "b/a", "standalone"} {
		d.Apply(discovery.Event{ID: id, Config: named(id)})
	}
	want := []string{"standalone", "a/b", "a/z", "b/a", "b-c/a"}
	if diff := cmp.Diff(want, ids(d)); diff != "" {
		t.Errorf("gateways (-want +got):\n%s", diff)
	}
	d.Apply(discovery.Event{ID: "a/z", Deleted: true})
	d.Apply(discovery.Event{ID: "a/never-was", Deleted: true})
	if diff := cmp.Diff([]string{"standalone", "a/b", "b/a", "b-c/a"}, ids(d)); diff != "" {
		t.Errorf("after deletion (-want +got):\n%s", diff)
	}
}

// The earlier lifetimes of any number of deleted gateways use bounded memory, and none is forgotten.
func TestFormerLifetimesAreBounded(t *testing.T) {
	now := time.Now()
	d := NewDirectory("", func() time.Time { return now }, slog.New(slog.DiscardHandler))
	with := func(id string, lifetime int32) discovery.Event {
		c := named(id)
		c.Auth.Lifetime = lifetime
		return discovery.Event{ID: id, Config: c}
	}
	last := ""
	for i := range maxFormer + 10 {
		last = fmt.Sprint("tenant/g", i)
		d.Apply(with(last, 3600))
		d.Apply(discovery.Event{ID: last, Deleted: true})
	}
	if n := len(d.former); n > maxFormer+1 {
		t.Errorf("lifetimes of %d gateways are kept", n)
	}
	for _, id := range []string{"tenant/g0", last} {
		d.Apply(with(id, 60))
		g := d.Select(Filter{})[0]
		if got := g.LastExpiry(now, time.Minute).Sub(now); got != time.Hour {
			t.Errorf("%s: the last credential expires after %s, want 1h", g.ID(), got)
		}
		d.Apply(discovery.Event{ID: id, Deleted: true})
	}
}

// Credentials that were issued before the start of the service may have the lifetime of the flags. Those that were issued
// since have that of the config.
func TestLifetimesBeforeTheStart(t *testing.T) {
	begun := time.Now()
	d := NewDirectory("", func() time.Time { return begun }, slog.New(slog.DiscardHandler))
	c := named("media/short")
	c.Auth.Lifetime = 60
	d.Apply(discovery.Event{ID: "media/short", Config: c})
	g := d.Select(Filter{})[0]
	for after, want := range map[time.Duration]time.Duration{
		0: 24 * time.Hour, 23 * time.Hour: 24 * time.Hour, 24 * time.Hour: 24*time.Hour + time.Minute,
	} {
		if got := g.LastExpiry(begun.Add(after), 24*time.Hour).Sub(begun); got != want {
			t.Errorf("%s after the start, the last credential expires %s after it, want %s", after, got, want)
		}
	}
}

func TestDirectoryLeavesSnapshotsAlone(t *testing.T) {
	d := NewDirectory("", time.Now, slog.New(slog.DiscardHandler))
	for i := range 5 {
		id := fmt.Sprintf("media/g%d", i)
		d.Apply(discovery.Event{ID: id, Config: named(id)})
	}
	before := d.last.Load().gateways
	d.Apply(discovery.Event{ID: "media/g1", Deleted: true})
	d.Apply(discovery.Event{ID: "media/a", Config: named("media/a")})
	for i, g := range before {
		if want := fmt.Sprintf("media/g%d", i); g.ID() != want {
			t.Errorf("entry %d of an older snapshot has become %s", i, g.ID())
		}
	}
}

// J-16: errors and lost connections remove no gateway.
func TestJ16DirectoryKeepsGatewaysWithoutTheSource(t *testing.T) {
	c := &clock{now: time.Unix(1_900_000_000, 0)}
	d := NewDirectory("", c.time, slog.New(slog.DiscardHandler))
	steps := []struct {
		name  string
		event discovery.Event
		ready bool
		age   time.Duration
		know  []string
	}{
		{"a source that cannot be reached", discovery.Event{
			Err: errors.New("connection refused"),
		}, false, 10 * time.Second, nil},
		{"a connection without configs", discovery.Event{Connected: true}, false, 0, nil},
		{"the first config", discovery.Event{ID: "media/oslo", Config: oslo()}, true, 0, []string{"media/oslo"}},
		{"a config that does not validate", discovery.Event{
			ID: "media/oslo", Err: fmt.Errorf("%w: port 0", discovery.ErrRejected),
		}, true, 0, []string{"media/oslo"}},
		{"a frame that nobody can read", discovery.Event{
			Err: fmt.Errorf("%w: no JSON", discovery.ErrRejected),
		}, true, 0, []string{"media/oslo"}},
		{"the connection is lost", discovery.Event{Err: errors.New("eof")}, true, 10 * time.Second, []string{
			"media/oslo",
		}},
		{"and lost again", discovery.Event{Err: errors.New("refused")}, true, 20 * time.Second, []string{"media/oslo"}},
		{"it comes back", discovery.Event{Connected: true}, true, 0, []string{"media/oslo"}},
		{"the last gateway is deleted", discovery.Event{ID: "media/oslo", Deleted: true}, true, 0, nil},
	}
	for i, s := range steps {
		d.Apply(s.event)
		c.advance(10 * time.Second)
		if err := d.Ready(); (err == nil) != s.ready {
			t.Errorf("%s: ready: %v", s.name, err)
		}
		if err := d.Synced(); (err == nil) != (i > 0) {
			t.Errorf("%s: synced: %v", s.name, err)
		}
		if d.Age() != s.age {
			t.Errorf("%s: age %s, want %s", s.name, d.Age(), s.age)
		}
		if diff := cmp.Diff(s.know, ids(d)); diff != "" {
			t.Errorf("%s: gateways (-want +got):\n%s", s.name, diff)
		}
	}
}

// The service is not ready before it has received the gateways, shortly after the connection.
func TestDirectoryIsReadyForProbesWithItsFirstConfig(t *testing.T) {
	for name, first := range map[string]*discovery.Event{
		"a gateway": {ID: "media/oslo", Config: oslo()}, "no gateway": nil,
	} {
		c := &clock{now: time.Unix(1_900_000_000, 0)}
		d := NewDirectory("", c.time, slog.New(slog.DiscardHandler))
		d.Apply(discovery.Event{Connected: true})
		if d.Synced() == nil {
			t.Errorf("%s: synced with the connection alone", name)
		}
		if first != nil {
			d.Apply(*first)
		} else {
			c.advance(firstConfigTimeout)
		}
		if err := d.Synced(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A service that can answer no request is not ready. Otherwise a rollout would replace pods that can. If there is no
// Gateway, the service is ready.
func TestServiceWithoutConfigsIsNotReady(t *testing.T) {
	complete := func(unpublished int) discovery.Event {
		return discovery.Event{List: &discovery.List{Complete: true, Unpublished: unpublished}}
	}
	rejected := func(id string) discovery.Event {
		return discovery.Event{ID: id, Err: fmt.Errorf("%w: type", discovery.ErrRejected)}
	}
	gone := func(id string) discovery.Event { return discovery.Event{ID: id, Deleted: true} }
	connected := discovery.Event{Connected: true, List: &discovery.List{}}
	for name, row := range map[string]struct {
		events []discovery.Event
		want   string // a part of the error, or nothing if the service is ready
	}{
		"no Gateway":                      {[]discovery.Event{connected, complete(0)}, ""},
		"the operator starts":             {[]discovery.Event{connected}, "has not sent all gateways yet"},
		"Gateways without configs":        {[]discovery.Event{connected, complete(2)}, "has no config of any gateway, and 2 need one"},
		"they are deleted":                {[]discovery.Event{connected, complete(2), complete(0)}, ""},
		"they get configs":                {[]discovery.Event{connected, complete(2), {ID: "media/oslo", Config: oslo()}}, ""},
		"some have configs":               {[]discovery.Event{connected, {ID: "media/oslo", Config: oslo()}, complete(1)}, ""},
		"the connection is lost":          {[]discovery.Event{connected, complete(2), {Err: errors.New("eof")}}, "2 need one"},
		"another operator":                {[]discovery.Event{connected, complete(0), connected}, "has not sent all gateways yet"},
		"an operator of an older release": {[]discovery.Event{connected, complete(2), {Connected: true}}, ""},
		"hidden secrets": {
			[]discovery.Event{connected, {ID: "media/oslo", Config: oslo().Redacted()}, complete(0)}, "--discovery-token-file",
		},
		"a config of a later release": {
			[]discovery.Event{connected, rejected("media/oslo"), complete(0)},
			`the config of gateway "media/oslo" is rejected`,
		},
		"hidden secrets of a deleted gateway": {
			[]discovery.Event{connected, {ID: "media/oslo", Config: oslo().Redacted()}, complete(0), gone("media/oslo")}, "",
		},
		"a rejected config of a deleted gateway": {
			[]discovery.Event{connected, rejected("media/oslo"), complete(0), gone("media/oslo")}, "",
		},
		"one of two rejected configs is deleted": {
			[]discovery.Event{connected, rejected("media/oslo"), rejected("media/rome"), complete(0), gone("media/oslo")},
			`the config of gateway "media/rome" is rejected`,
		},
	} {
		c := &clock{now: time.Unix(1_900_000_000, 0)}
		d := NewDirectory("", c.time, slog.New(slog.DiscardHandler))
		for _, e := range row.events {
			d.Apply(e)
		}
		c.advance(time.Hour)
		err := d.Synced()
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
		if d.Ready() != nil && len(d.Select(Filter{})) > 0 {
			t.Errorf("%s: not ready, with gateways", name)
		}
	}
}

// Gateways without a dataplane are marked, before and after a new config, and also while the source is away. Readers of an
// earlier snapshot see no change.
func TestDirectoryMarksIdleGateways(t *testing.T) {
	d := NewDirectory("", time.Now, slog.New(slog.DiscardHandler))
	idle := func(ids ...string) discovery.Event {
		return discovery.Event{List: &discovery.List{Complete: true, Idle: ids}}
	}
	given := discovery.Event{ID: "media/oslo", Config: oslo()}
	for _, step := range []struct {
		name  string
		event discovery.Event
		want  bool
	}{
		{"a config", given, false},
		{"no dataplane", idle("media/oslo"), true},
		{"another config", given, true},
		{"a lost connection", discovery.Event{Err: errors.New("eof")}, true},
		{"a new connection", discovery.Event{Connected: true, List: &discovery.List{}}, true},
		{"a dataplane", idle("media/bergen"), false},
		{"none again", idle("media/bergen", "media/oslo"), true},
		{"an operator of an older release", discovery.Event{List: &discovery.List{Complete: true}}, false},
	} {
		before := d.Select(Filter{})
		var old Gateway
		if len(before) > 0 {
			old = *before[0]
		}
		d.Apply(step.event)
		if len(before) > 0 && before[0].Idle != old.Idle {
			t.Errorf("%s: a snapshot has changed", step.name)
		}
		all, named := d.Select(Filter{}), d.Select(Filter{Namespace: "media", Name: "oslo"})
		if all[0].Idle != step.want || named[0].Idle != step.want {
			t.Errorf("%s: idle %t, %t, want %t", step.name, all[0].Idle, named[0].Idle, step.want)
		}
	}
}

func TestDirectoryRefusesHiddenSecrets(t *testing.T) {
	d := NewDirectory("", time.Now, slog.New(slog.DiscardHandler))
	d.Apply(discovery.Event{ID: "media/oslo", Config: oslo().Redacted()})
	if err := d.Ready(); err == nil ||
		err.Error() != "config discovery hides the secrets of gateways: give the service a token with --discovery-token-file" {
		t.Errorf("ready: %v", err)
	}
	d.Apply(discovery.Event{ID: "media/oslo", Config: oslo()})
	d.Apply(discovery.Event{ID: "media/oslo", Config: oslo().Redacted()})
	if got := d.Select(Filter{})[0].Authority.SharedSecret; string(got) != "oslo-secret" {
		t.Error("a redacted config replaced the secret")
	}
}

// J-16, R-25: the gateways stay when the discovery server ends.
func TestJ16DiscoveryEnds(t *testing.T) {
	server := discovery.NewServer(discovery.ServerOptions{Log: slog.New(slog.DiscardHandler)})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- telemetry.Serve(serving, listener, server) }()
	valid := oslo()
	valid.Listeners = valid.Listeners[1:3] // the other listeners have no certificate
	server.Publish(valid)
	source, err := discovery.Open("http://"+listener.Addr().String(), discovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := NewDirectory("", time.Now, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { d.Run(ctx, source); close(done) }()
	defer func() { cancel(); <-done }()

	until(t, "the config arrives", func() bool { return d.Ready() == nil && d.Age() == 0 })
	changed := valid.Clone()
	changed.Auth.Credentials[config.KeySecret] = credential.Secret("rotated")
	server.Publish(changed)
	until(
		t, "the secret is rotated",
		func() bool { return string(d.Select(Filter{})[0].Authority.SharedSecret) == "rotated" },
	)
	end()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	until(t, "the loss is noticed", func() bool { return d.Age() > 0 })
	if len(d.Select(Filter{})) != 1 || d.Ready() != nil {
		t.Error("gateways were lost with the connection")
	}
}

// until polls, because there is no event to wait for.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain until %s", what)
		case <-tick.C:
		}
	}
}

// J-09: a service whose clock differs by more than five minutes does not become ready. A service that was ready stays
// ready.
func TestJ09ClocksThatDifferKeepFromBeginning(t *testing.T) {
	d := NewDirectory("", time.Now, slog.New(slog.DiscardHandler))
	for _, step := range []struct {
		ahead time.Duration
		ready bool
	}{{time.Hour, false}, {-time.Hour, false}, {time.Second, true}, {time.Hour, true}, {-time.Hour, true}} {
		d.Apply(discovery.Event{Connected: true, Ahead: &step.ahead})
		d.Apply(discovery.Event{ID: "media/oslo", Config: oslo()})
		if ready, synced := d.Ready(), d.Synced(); (ready == nil) != step.ready || (synced == nil) != step.ready {
			t.Errorf("ahead by %s: ready %v, synced %v", step.ahead, ready, synced)
		}
	}
}

// tardy is a source whose clock is right from its second connection on.
type tardy struct {
	discovery.Source
	connections int
}

func (s *tardy) Watch(ctx context.Context) <-chan discovery.Event {
	s.connections++
	ahead := time.Hour
	if s.connections > 1 {
		ahead = 0
	}
	events := make(chan discovery.Event, 1)
	events <- discovery.Event{Connected: true, Ahead: &ahead}
	context.AfterFunc(ctx, func() { close(events) })
	return events
}

// J-09: a service that is not ready because of its clock compares the clocks again.
func TestJ09ClocksAreComparedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d, source := NewDirectory("", time.Now, slog.New(slog.DiscardHandler)), &tardy{}
		done := make(chan struct{})
		go func() { defer close(done); d.Run(ctx, source) }()
		synctest.Wait()
		if err := d.Synced(); err == nil || !strings.Contains(err.Error(), "ahead of the operator's by 1h0m0s") {
			t.Errorf("with a clock that is an hour ahead: %v", err)
		}
		time.Sleep(compareInterval + firstConfigTimeout)
		synctest.Wait()
		if err := d.Synced(); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * compareInterval)
		cancel()
		<-done
		if source.connections != 2 {
			t.Errorf("%d connections, want 2", source.connections)
		}
	})
}

// J-09: a difference of the clocks of more than five minutes is in metrics and log.
func TestJ09ClockDifferencesAreReported(t *testing.T) {
	var out strings.Builder
	d := NewDirectory("", time.Now, slog.New(slog.NewTextHandler(&out, nil)))
	for _, c := range []struct {
		ahead *time.Duration
		want  time.Duration
		told  bool
	}{
		{nil, 0, false},
		{new(5 * time.Minute), 5 * time.Minute, false},
		{new(-5 * time.Minute), -5 * time.Minute, false},
		{new(time.Hour), time.Hour, true},
		{new(-time.Hour), -time.Hour, true},
		{nil, -time.Hour, false}, // the source sends no time: the last known difference stays
		{new(time.Duration(0)), 0, false},
	} {
		out.Reset()
		d.Apply(discovery.Event{Connected: true, Ahead: c.ahead})
		if told := strings.Contains(out.String(), "clocks differ"); d.Ahead() != c.want || told != c.told {
			t.Errorf("%v: ahead by %s, told %t: %s", c.ahead, d.Ahead(), told, out.String())
		}
	}
}
