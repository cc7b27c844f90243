package follower

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// For any rate of config changes, applying them uses a small share of a core, and the disk is written every few
// seconds. The first change is applied at once. When the process ends, the last applied config is on disk.
func TestFrequentConfigChangesAreAppliedRarely(t *testing.T) {
	dir := t.TempDir()
	const cost, seconds = 20 * time.Millisecond, 20
	var applied, written atomic.Int64
	synctest.Test(t, func(t *testing.T) {
		disk := ""
		f, h := followWith(t, func(o *Options) {
			o.Last.Dir = dir
			o.Applied = func(config.Config) error {
				applied.Add(1)
				time.Sleep(cost)
				if data, err := os.ReadFile(filepath.Join(dir, lastGoodFile)); err == nil && string(data) != disk {
					disk = string(data)
					written.Add(1)
				}
				return nil
			}
		})
		begun := time.Now()
		for time.Since(begun) < seconds*time.Second {
			e := quiet(t, fmt.Sprintf("realm-%d.example", time.Since(begun).Milliseconds()))
			select {
			case h.events <- e:
			case <-time.After(50 * time.Millisecond):
			}
			if applied.Load() == 0 {
				synctest.Wait()
				time.Sleep(cost)
				synctest.Wait()
				if f.Revision() == "" {
					t.Error("the first config is not in force at once")
				}
			}
		}
		if used := time.Duration(applied.Load()) * cost; used > seconds*time.Second*27/1000 || applied.Load() < 10 {
			t.Errorf("%d configs were put in force within %d s, which took %v", applied.Load(), seconds, used)
		}
		if n := written.Load(); n == 0 || n > 2*seconds/5+1 {
			t.Errorf("the disk was written %d times within %d s", n, seconds)
		}
		time.Sleep(discovery.Cooldown(cost, applyShare))
		h.events <- quiet(t, "last.example")
	})
	if c, _, err := (LastGood{Dir: dir, ID: id}).Load(time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)); err != nil ||
		c.Auth.Realm != "last.example" {
		t.Errorf("on disk is %q: %v", c.Auth.Realm, err)
	}
}

// A config with other listeners is written to disk at once, even soon after another write, because the sessions of a
// listener are restored with the config on disk. Other changes are written rarely.
func TestOtherListenersAreSavedAtOnce(t *testing.T) {
	dir := t.TempDir()
	f, _ := newFollower(t, func(o *Options) { o.Last.Dir = dir })
	at := testport.Free(t)
	one := configWith(t, nil)
	two := one.Clone()
	two.Listeners = append(two.Listeners, config.Listener{Name: id + "/other", Protocol: config.TURNTCP, Port: at})
	moved := two.Clone()
	moved.Listeners[1].Port = testport.Free(t)
	realm := moved.Clone()
	realm.Auth.Realm = "other.example"
	for _, step := range []struct {
		what        string
		next, saved config.Config
	}{
		{"first", one, one}, {"another listener", two, two}, {"another port", moved, moved}, {"another realm", realm, moved},
		{"a removed listener", one, one},
	} {
		step.next.Default()
		f.take(discovery.Loaded{Config: step.next, Revision: step.next.Revision()})
		got, _, err := f.opt.Last.Load(time.Now())
		if step.saved.Default(); err != nil || got.Revision() != step.saved.Revision() {
			t.Errorf("%s: saved %s, %v, want %s", step.what, got.Revision(), err, step.saved.Revision())
		}
	}
}
