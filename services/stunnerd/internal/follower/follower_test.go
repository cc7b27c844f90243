package follower

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/server"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = "media/edge"

// hand is a source that sends the events of the test, and records the reports.
type hand struct {
	events  chan discovery.Event
	reports chan discovery.Report
}

func (h *hand) Watch(ctx context.Context) <-chan discovery.Event {
	context.AfterFunc(ctx, func() { close(h.events) })
	return h.events
}
func (h *hand) Load(context.Context) ([]discovery.Loaded, error) {
	return nil, errors.New("not read once")
}
func (h *hand) String() string { return "test" }
func (h *hand) Report(r discovery.Report) {
	select {
	case h.reports <- r:
	default:
	}
}

// follow runs a follower until the test ends.
func follow(t *testing.T, dir string) (*Follower, *hand) {
	t.Helper()
	return followWith(t, func(o *Options) { o.Last.Dir = dir })
}

func followWith(t *testing.T, change func(*Options)) (*Follower, *hand) {
	t.Helper()
	f, h := newFollower(t, change)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, h
}

// newFollower returns a follower that does not run.
func newFollower(t *testing.T, change func(*Options)) (*Follower, *hand) {
	t.Helper()
	srv, err := server.New(server.Options{
		HostAddresses: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")},
		Log:           slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &hand{events: make(chan discovery.Event), reports: make(chan discovery.Report, 64)}
	o := Options{
		Source: h, Server: srv, Last: LastGood{ID: id}, Applied: func(config.Config) error { return nil }, Pod: "pod-1",
		Lookup: func(name string) string { return map[string]string{"STUNNER_ADDR": "192.0.2.9"}[name] },
		Log:    slog.New(slog.DiscardHandler),
	}
	change(&o)
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return New(o), h
}

func configWith(t *testing.T, change func(*config.Config)) config.Config {
	t.Helper()
	c := config.Config{
		Version: config.Version, Admin: config.Admin{Name: id},
		Auth: config.Auth{
			Type: config.AuthStatic, Credentials: map[string]credential.Secret{"username": "ann", "password": "s3cret"},
		},
		Listeners: []config.Listener{{
			Name: id + "/udp", Protocol: config.TURNUDP, Address: config.AddressPlaceholder, Port: testport.Free(t)}},
	}
	if change != nil {
		change(&c)
	}
	c.Default()
	return c
}

// reported waits for a report that matches.
func (h *hand) reported(t *testing.T, wanted func(discovery.Report) bool) discovery.Report {
	t.Helper()
	for {
		select {
		case r := <-h.reports:
			if wanted(r) {
				return r
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no such report")
		}
	}
}

// K-15: the last good config is saved in a file of mode 0600.
func TestGoodConfigIsAppliedReportedAndKept(t *testing.T) {
	dir := t.TempDir()
	f, h := follow(t, dir)
	if f.Ready() == nil {
		t.Error("ready without a config")
	}
	c := configWith(t, nil)
	h.events <- discovery.Event{ID: id, Config: c, Revision: c.Revision()}
	r := h.reported(t, func(r discovery.Report) bool { return r.Revision == c.Revision() })
	if !r.Accepted || r.ID != id || r.Pod != "pod-1" {
		t.Errorf("report %+v", r)
	}
	if err := f.Ready(); err != nil {
		t.Error(err)
	}
	if got := f.Status().Listeners[0].Address; got != "192.0.2.9" {
		t.Errorf("placeholder became %q", got)
	}
	info, err := os.Stat(filepath.Join(dir, lastGoodFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("last good config: %v, %v", info, err)
	}
}

// a rejected config is reported with its error, and the previous config stays in force.
func TestRejectedConfigChangesNothingAndIsReported(t *testing.T) {
	f, h := follow(t, t.TempDir())
	c := configWith(t, nil)
	h.events <- discovery.Event{ID: id, Config: c, Revision: c.Revision()}
	h.reported(t, func(r discovery.Report) bool { return r.Accepted && r.Revision != "" })
	h.events <- discovery.Event{ID: id, Err: errors.Join(discovery.ErrRejected, errors.New("listeners[0].port: 70000"))}
	r := h.reported(t, func(r discovery.Report) bool { return !r.Accepted })
	if r.Revision != c.Revision() || !strings.Contains(r.Error, "70000") {
		t.Errorf("report %+v", r)
	}
	if st := f.Status(); st.Status != inspection.Ready || len(st.Listeners) != 1 || !strings.Contains(st.Problem, "70000") {
		t.Errorf("status %+v", st)
	}
	h.events <- discovery.Event{ID: id, Config: c, Revision: c.Revision()}
	h.reported(t, func(r discovery.Report) bool { return r.Accepted })
	if st := f.Status(); st.Problem != "" {
		t.Errorf("problem %q stays", st.Problem)
	}
}

// A retry of the previous config does not clear the error of a rejected config.
func TestRejectionOutlivesRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := errors.New("metrics port in use")
		var failing atomic.Bool
		f, h := followWith(t, func(o *Options) {
			o.Applied = func(config.Config) error {
				if failing.Load() {
					return taken
				}
				return nil
			}
		})
		wants := func(what, problem string) {
			t.Helper()
			synctest.Wait()
			for len(h.reports) > 0 {
				<-h.reports
			}
			r := h.reported(t, func(discovery.Report) bool { return true })
			if got := f.Status(); got.Config.Revision != got.Revision || got.Config.Rejected != f.state().rejected ||
				got.Pod != r.Pod {
				t.Errorf("%s: status %+v", what, got)
			}
			if got := f.Status().Problem; got != f.Problem() || r.Error != got || r.Accepted != (problem == "") ||
				!strings.Contains(got, problem) {
				t.Errorf("%s: problem %q, status %q, report %+v; want %q", what, f.Problem(), got, r, problem)
			}
		}
		failing.Store(true)
		h.events <- quiet(t, "one.example")
		wants("a part does not run", taken.Error())
		h.events <- discovery.Event{
			ID: id, Err: errors.Join(discovery.ErrRejected, errors.New("listeners[0].port: 70000")),
		}
		wants("another one is kept out", "70000")
		time.Sleep(retryInterval)
		wants("tried again", "70000")
		failing.Store(false)
		time.Sleep(2 * retryInterval)
		wants("all of it runs", "70000")
		h.events <- discovery.Event{Connected: true}
		wants("nothing new", "70000")
		h.events <- quiet(t, "two.example")
		wants("another one", "")
		if got := f.Problem(); got != "" {
			t.Errorf("problem %q stays", got)
		}
	})
}

// rejected configs are counted by reason.
func TestRejectedConfigsAreCountedByReason(t *testing.T) {
	f, h := follow(t, "")
	wrong := configWith(t, func(c *config.Config) { c.Listeners[0].Port = 70000 }).Validate()
	for _, err := range []error{wrong, wrong, errors.New("parse config: line 1")} {
		h.events <- discovery.Event{ID: id, Err: errors.Join(discovery.ErrRejected, err)}
	}
	h.events <- discovery.Event{Err: errors.New("connection refused")}
	h.events <- discovery.Event{Connected: true}
	got := f.opt.Server.Meter().Declined(meter.Configs)
	if want := map[string]uint64{"invalid": 2, "unreadable": 1}; !maps.Equal(got, want) {
		t.Errorf("rejected configs %v, want %v", got, want)
	}
}

// unknown fields are counted once for each config, and listed.
func TestUnknownFieldsAreCountedOncePerConfig(t *testing.T) {
	f, h := follow(t, "")
	counted := f.opt.Server.Meter().UnknownFields.Load
	c := configWith(t, nil)
	for _, step := range []struct {
		unknown []string
		want    uint64
	}{
		{[]string{"admin.new", "newer"}, 2},
		{[]string{"admin.new", "newer"}, 2}, // as after a reconnect, when the source sends the config again
		{[]string{"newest"}, 3},             // after an upgrade of the source, without a change of known fields
		{nil, 3},
	} {
		h.events <- discovery.Event{ID: id, Config: c, Revision: c.Revision(), Unknown: step.unknown}
		h.events <- discovery.Event{Connected: true} // the follower receives this event after it has handled the config
		if got, st := counted(), f.Status(); got != step.want || !slices.Equal(st.Unknown, step.unknown) ||
			st.Status != inspection.Ready {
			t.Errorf("after %q: %d counted, want %d; status %+v", step.unknown, got, step.want, st)
		}
	}
	c.Auth.Realm = "other.example"
	h.events <- discovery.Event{ID: id, Config: c, Revision: c.Revision(), Unknown: []string{"newest"}}
	h.reported(t, func(r discovery.Report) bool { return r.Revision == c.Revision() })
	if got := counted(); got != 4 {
		t.Errorf("%d counted, want 4", got)
	}
}

// configs are applied at a bounded rate. Of the configs that arrive meanwhile, the newest is applied.
func TestConfigsAreAppliedAtABoundedRate(t *testing.T) {
	const changes = 5
	_, h := follow(t, "")
	h.events <- discovery.Event{Connected: true}
	began := time.Now()
	for range changes {
		h.events <- discovery.Event{ID: id, Config: configWith(t, nil)}
	}
	if took, least := time.Since(began), (changes-1)*applyInterval; took < least {
		t.Errorf("%d configs were taken in %s, want at least %s", changes, took, least)
	}
}

// L-3: neither a deletion nor the loss of the source changes the running config.
func TestDeletionAndLossChangeNothing(t *testing.T) {
	f, h := follow(t, "")
	h.events <- discovery.Event{ID: id, Config: configWith(t, nil)}
	h.events <- discovery.Event{ID: id, Deleted: true}
	h.events <- discovery.Event{Err: errors.New("connection refused")}
	h.reported(t, func(r discovery.Report) bool { return r.Accepted })
	h.events <- discovery.Event{Connected: true}
	if st := f.Status(); st.Status != inspection.Ready || len(st.Listeners) != 1 {
		t.Errorf("status %+v", st)
	}
}

// a process whose source is silent starts with the last good config.
func TestSilentSourceStartsWithTheLastGoodConfig(t *testing.T) {
	dir := t.TempDir()
	c := configWith(t, nil)
	if err := (LastGood{Dir: dir, ID: id}).Save(c, time.Now()); err != nil {
		t.Fatal(err)
	}
	f, h := follow(t, dir)
	r := h.reported(t, func(r discovery.Report) bool { return r.Revision != "" })
	if r.Revision != c.Revision() {
		t.Errorf("runs %s", r.Revision)
	}
	if got := f.Status().Origin; got != "last good config" {
		t.Errorf("origin %q", got)
	}
}

// a process does not wait for a source that is unreachable.
func TestUnreachableSourceStartsWithTheLastGoodConfigAtOnce(t *testing.T) {
	dir := t.TempDir()
	save(t, LastGood{Dir: dir, ID: id}, configWith(t, nil), time.Now())
	f, h := follow(t, dir)
	h.events <- discovery.Event{Err: errors.New("connection refused")}
	h.reported(t, func(discovery.Report) bool { return true }) // the report is sent before the saved config is read
	h.events <- discovery.Event{Connected: true}
	if got := f.Status().Origin; got != "last good config" {
		t.Errorf("origin %q", got)
	}
}

// lateSource is a source that records the state of its follower when the follower starts to watch it.
type lateSource struct {
	*hand
	asked func()
}

func (l lateSource) Watch(ctx context.Context) <-chan discovery.Event {
	l.asked()
	return l.hand.Watch(ctx)
}

// A process with sessions to restore starts with the last good config before it asks its source.
func TestRestoringStartsWithTheLastGoodConfig(t *testing.T) {
	dir := t.TempDir()
	save(t, LastGood{Dir: dir, ID: id}, configWith(t, nil), time.Now())
	var f atomic.Pointer[Follower]
	origin := make(chan string, 1)
	follower, _ := followWith(t, func(o *Options) {
		o.Last.Dir, o.Restoring = dir, true
		o.Source = lateSource{o.Source.(*hand), func() {
			for f.Load() == nil {
				time.Sleep(time.Millisecond)
			}
			origin <- f.Load().Status().Origin
		}}
	})
	f.Store(follower)
	if got := <-origin; got != "last good config" {
		t.Errorf("origin %q when the source is asked", got)
	}
}

func TestInvalidLastGoodConfigIsNotUsed(t *testing.T) {
	now := time.Now()
	c := configWith(t, nil)
	cases := map[string]struct {
		spoil func(t *testing.T, l LastGood)
		want  string
	}{
		"none": {func(*testing.T, LastGood) {}, errNothingSaved.Error()},
		"of another id": {func(t *testing.T, l LastGood) {
			save(
				t, LastGood{l.Dir, "other/one"}, configWith(t, func(c *config.Config) { c.Admin.Name = "other/one" }),
				now,
			)
		}, "not of media/edge"},
		"too old": {func(t *testing.T, l LastGood) { save(t, l, c, now.Add(-MaxAge-time.Minute)) }, "ago"},
		"cut":     {func(t *testing.T, l LastGood) { write(t, l, `{"saved":"2026-01-0`) }, "read last good config"},
		"no longer valid": {func(t *testing.T, l LastGood) {
			write(t, l, `{"saved":"`+now.Format(
				time.RFC3339,
			)+`","config":{"version":"v1","admin":{"name":"media/edge"},"auth":{"type":"static"}}}`)
		}, "read last good config"},
		"of other version": {func(t *testing.T, l LastGood) {
			write(t, l, `{"saved":"`+now.Format(time.RFC3339)+`","config":{"version":"v9"}}`)
		}, "read last good config"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := LastGood{Dir: t.TempDir(), ID: id}
			tc.spoil(t, l)
			if _, _, err := l.Load(now); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func save(t *testing.T, l LastGood, c config.Config, at time.Time) {
	t.Helper()
	if err := l.Save(c, at); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, l LastGood, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(l.Dir, lastGoodFile), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// a config is applied even if the state directory is not writable.
func TestUnwritableStateFolderDoesNotStopTheProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, h := follow(t, filepath.Join(file, "state"))
	c := configWith(t, nil)
	h.events <- discovery.Event{ID: id, Config: c, Revision: c.Revision()}
	h.reported(t, func(r discovery.Report) bool { return r.Accepted && r.Revision != "" })
	if err := f.Ready(); err != nil {
		t.Error(err)
	}
}

// a report that is due is sent at once, so that the other pods are notified of a draining pod.
func TestReportNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := follow(t, t.TempDir())
		h.events <- discovery.Event{Err: errors.New("unreachable")}
		h.reported(t, func(discovery.Report) bool { return true })
		begun := time.Now()
		f.opt.Server.Sessions().Drain()
		f.ReportNow()
		h.reported(t, func(r discovery.Report) bool { return r.Draining })
		if took := time.Since(begun); took != 0 {
			t.Errorf("reported after %s", took)
		}
	})
}
