package follower

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// standby writes the standby config of a process.
func standby(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "standby")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// a process that starts while its source is unreachable runs the standby config, and later the config of the
// source.
func TestUnreachableSourceStartsWithTheStandbyConfig(t *testing.T) {
	dir := t.TempDir()
	ready, next := configWith(t, nil), configWith(t, nil)
	f, h := followWith(t, func(o *Options) { o.Last.Dir, o.Standby = dir, standby(t, ready.Pack()) })
	h.events <- discovery.Event{Err: errors.New("connection refused")}
	h.reported(t, func(discovery.Report) bool { return true }) // sent before the standby config is read
	h.events <- discovery.Event{Connected: true}
	if st := f.Status(); st.Origin != "standby config" || st.Revision != ready.Revision() || f.Ready() != nil {
		t.Errorf("runs %s from %q: %v", st.Revision, st.Origin, f.Ready())
	}
	if _, _, err := (LastGood{Dir: dir, ID: id}).Load(time.Now()); !errors.Is(err, errNothingSaved) {
		t.Errorf("a config that nobody knows the age of is kept: %v", err)
	}
	h.events <- discovery.Event{ID: id, Config: next, Revision: next.Revision()}
	h.reported(t, func(r discovery.Report) bool { return r.Revision == next.Revision() })
	if c, _, err := (LastGood{Dir: dir, ID: id}).Load(time.Now()); err != nil || c.Revision() != next.Revision() {
		t.Errorf("kept is %s: %v", c.Revision(), err)
	}
}

// The last good config takes precedence over the standby config.
func TestLastGoodConfigTakesPrecedenceOverTheStandbyConfig(t *testing.T) {
	dir, kept := t.TempDir(), configWith(t, nil)
	save(t, LastGood{Dir: dir, ID: id}, kept, time.Now())
	_, h := followWith(t, func(o *Options) { o.Last.Dir, o.Standby = dir, standby(t, configWith(t, nil).Pack()) })
	h.reported(t, func(r discovery.Report) bool { return r.Revision == kept.Revision() })
}

func TestInvalidStandbyConfigIsNotUsed(t *testing.T) {
	other := configWith(t, func(c *config.Config) { c.Admin.Name = "other/one" })
	wrong := configWith(t, func(c *config.Config) { c.Listeners[0].Port = 70000 })
	for name, tc := range map[string]struct{ path, want string }{
		"no file wanted":  {"", errNothingSaved.Error()},
		"no file":         {filepath.Join(t.TempDir(), "standby"), errNothingSaved.Error()},
		"a folder":        {t.TempDir(), "read standby config"},
		"of another id":   {standby(t, other.Pack()), "not of media/edge"},
		"cut":             {standby(t, configWith(t, nil).Pack()[:40]), "unpack config"},
		"not valid":       {standby(t, wrong.Pack()), "listeners[0].port"},
		"without secrets": {standby(t, configWith(t, nil).Redacted().Pack()), "secret was left out"},
	} {
		if _, err := readStandby(tc.path, id); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
	if c, err := readStandby(standby(t, configWith(t, nil).Canonical()), id); err != nil || c.Admin.Name != id {
		t.Errorf("as it is: %v", err)
	}
}
