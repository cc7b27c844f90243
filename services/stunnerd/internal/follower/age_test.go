package follower

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

const day = 24 * time.Hour

var silence = discovery.Event{Err: errors.New("connection refused")}

// quiet is a config without listeners, because a socket would block the clock of a synctest bubble.
func quiet(t *testing.T, realm string) discovery.Event {
	t.Helper()
	c := configWith(t, func(c *config.Config) { c.Listeners, c.Auth.Realm = nil, realm })
	return discovery.Event{ID: id, Config: c, Revision: c.Revision()}
}

// saved returns when the saved config was last confirmed, or the zero time if no config is saved. It waits for a write
// that is due.
func saved(t *testing.T, l LastGood) time.Time {
	t.Helper()
	synctest.Wait()
	_, at, err := l.Load(time.Now())
	if err != nil && !errors.Is(err, errNothingSaved) {
		t.Fatal(err)
	}
	return at
}

// A process can start with a config that has not changed for eight days, if its source was connected.
func TestConfigAgeCountsFromTheLastConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := LastGood{Dir: t.TempDir(), ID: id}
		_, h := follow(t, l.Dir)
		h.events <- discovery.Event{Connected: true}
		h.events <- quiet(t, "one.example")
		first := saved(t, l)
		time.Sleep(confirmInterval - reportInterval)
		if at := saved(t, l); !at.Equal(first) {
			t.Errorf("written again after %s", at.Sub(first))
		}
		time.Sleep(8 * day)
		at := saved(t, l)
		if age := time.Since(at); age > confirmInterval+reportInterval {
			t.Errorf("the source stands by what is kept, and it is %s old", age)
		}
		h.events <- silence
		time.Sleep(MaxAge - 2*confirmInterval)
		if !saved(t, l).Equal(at) {
			t.Error("what is kept gets younger without its source")
		}
		time.Sleep(2 * confirmInterval)
		if _, _, err := l.Load(time.Now()); err == nil {
			t.Error("what nobody has stood by for more than a week can be started with")
		}
		h.events <- discovery.Event{Connected: true}
		time.Sleep(reportInterval)
		if age := time.Since(saved(t, l)); age > reportInterval {
			t.Errorf("the source is back, and what is kept is %s old", age)
		}
	})
}

// A source that sends an invalid config, or is disconnected, does not confirm the previous config.
func TestInvalidConfigDoesNotConfirmThePreviousOne(t *testing.T) {
	for name, e := range map[string]discovery.Event{
		"rejected": {ID: id, Err: errors.Join(discovery.ErrRejected, errors.New("listeners[0].port: 70000"))},
		"deleted":  {ID: id, Deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := LastGood{Dir: t.TempDir(), ID: id}
				_, h := follow(t, l.Dir)
				h.events <- discovery.Event{Connected: true}
				h.events <- quiet(t, "one.example")
				at := saved(t, l)
				h.events <- e
				time.Sleep(2 * confirmInterval)
				if !saved(t, l).Equal(at) {
					t.Error("what is kept gets younger")
				}
				h.events <- quiet(t, "one.example")
				if age := time.Since(saved(t, l)); age != 0 {
					t.Errorf("the source says it again, and what is kept is %s old", age)
				}
			})
		})
	}
}

// Starting with a saved config does not renew its age, and neither does a connected source without a config.
func TestStartDoesNotRenewTheAgeOfAConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		age     time.Duration // the age of the saved config
		standby bool
		origin  string
	}{
		"last good": {6 * day, false, "last good config"},
		"standby":   {0, true, "standby config"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := LastGood{Dir: t.TempDir(), ID: id}
				e := quiet(t, "one.example")
				var before time.Time
				if tc.age > 0 {
					before = time.Now().Add(-tc.age)
					save(t, l, e.Config, before)
				}
				f, h := followWith(t, func(o *Options) {
					o.Last = l
					if tc.standby {
						o.Standby = standby(t, e.Config.Pack())
					}
				})
				h.events <- silence
				synctest.Wait()
				if got := f.Status().Origin; got != tc.origin {
					t.Fatalf("origin %q", got)
				}
				for _, next := range []discovery.Event{silence, {Connected: true}, silence} {
					h.events <- next
					time.Sleep(2 * confirmInterval)
					if at := saved(t, l); !at.Equal(before) {
						t.Errorf("kept as of %s, want %s", at, before)
					}
				}
				h.events <- e // the same config, confirmed by the source
				if at := saved(t, l); !at.Equal(time.Now()) {
					t.Errorf("the source says it, and it is kept as of %s", at)
				}
			})
		})
	}
}

// the age of the config counts from the last contact with the source, also after restarts.
func TestAgeCountsFromTheLastContact(t *testing.T) {
	wants := func(t *testing.T, f *Follower, what string, want time.Duration) {
		t.Helper()
		synctest.Wait()
		if got := f.Age(); got != want.Seconds() {
			t.Errorf("%s: age %v s, want %v", what, got, want.Seconds())
		}
	}
	const later = 20 * time.Minute
	for name, tc := range map[string]struct {
		options func(t *testing.T, o *Options)
		before  time.Duration // age at the start
	}{
		"nothing to start with": {func(*testing.T, *Options) {}, 0},
		"last good config": {func(t *testing.T, o *Options) {
			o.Last.Dir = t.TempDir()
			save(t, o.Last, quiet(t, "one.example").Config, time.Now().Add(-2*day))
		}, 2 * day},
		"last good config, by a clock that was ahead": {func(t *testing.T, o *Options) {
			o.Last.Dir = t.TempDir()
			save(t, o.Last, quiet(t, "one.example").Config, time.Now().Add(later))
		}, -later},
		"standby config": {
			func(t *testing.T, o *Options) { o.Standby = standby(t, quiet(t, "one.example").Config.Pack()) }, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, h := followWith(t, func(o *Options) { tc.options(t, o) })
				h.events <- silence
				wants(t, f, "at the start", max(0, tc.before))
				time.Sleep(later)
				wants(t, f, "later", tc.before+later)
				h.events <- silence
				wants(t, f, "still nothing", tc.before+later)
				h.events <- discovery.Event{Connected: true}
				wants(t, f, "heard", 0)
				h.events <- quiet(t, "two.example")
				time.Sleep(day)
				wants(t, f, "unchanged", 0)
				h.events <- silence
				time.Sleep(later)
				wants(t, f, "lost", later)
			})
		})
	}
}
