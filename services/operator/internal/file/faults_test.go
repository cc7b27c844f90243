package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// If the input folder cannot be read, status.txt and problems.yaml report a fault of the host, and nothing is removed.
func TestAnInputFolderThatCannotBeReadIsReported(t *testing.T) {
	s := newSite(t)
	s.run()
	s.awaitConfig("the first config", func(config.Config) bool { return true })
	if err := os.Rename(s.provider.Input, s.provider.Input+".away"); err != nil {
		t.Fatal(err)
	}
	s.awaitStatus("ERROR input folder: " + s.provider.Input + ": cannot be read: no such file or directory")
	until(t, "problems.yaml has the fault", func() bool { return strings.Contains(s.output("problems.yaml"), "file: input folder") })
	if _, there := s.config(); !there {
		t.Error("the config is withdrawn")
	}
	if err := os.Rename(s.provider.Input+".away", s.provider.Input); err != nil {
		t.Fatal(err)
	}
	until(t, "the fault has ended", func() bool { return !strings.Contains(s.output("status.txt"), "ERROR input folder") })
}

// If something that cannot be read is in the place of a file, the objects of the file stay, and the report names the
// place with a remedy.
func TestAFileThatCannotBeReadKeepsItsObjects(t *testing.T) {
	for want, replace := range map[string]func(string) error{
		"is a directory; what was in force before stays in force: write the file anew": func(path string) error { return os.Mkdir(path, 0o700) },
		"leads to no file; what was in force before stays in force: correct":           func(path string) error { return os.Symlink("/none", path) },
		"too many levels of symbolic links; what was in force before":                  func(path string) error { return os.Symlink(path, path) },
	} {
		s := newSite(t)
		s.run()
		s.awaitConfig("the first config", func(config.Config) bool { return true })
		s.remove("config.yml")
		if err := replace(filepath.Join(s.provider.Input, "config.yml")); err != nil {
			t.Fatal(err)
		}
		s.awaitStatus("config.yml:1: cannot be read: ")
		if text := s.output("status.txt"); !strings.Contains(text, want) || !strings.Contains(text, "Secret calls/turn-auth: its last good form is in force") {
			t.Errorf("no %q in\n%s", want, text)
		}
		s.end()
	}
}

// Each error of a file system has a remedy that names the path.
func TestRemediesOfFileErrors(t *testing.T) {
	for err, want := range map[error]string{
		unix.ENOSPC: "df -h /srv/out", unix.EDQUOT: "quota of user ", unix.EROFS: "writable", unix.EACCES: "ls -ld /srv/out",
		unix.ENOENT: "put it back", unix.EIO: "dmesg", unix.EMFILE: "see /srv/out",
	} {
		if got := remedyOf(&fs.PathError{Op: "open", Path: "/srv/out", Err: err}, "/srv/out"); !strings.Contains(got, want) || strings.Contains(got, "%") {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// The first error of a round determines the finding. It is an error if changes have no effect, and a warning if a
// result is only not stored.
func TestFaultsOfARound(t *testing.T) {
	l := &loop{Provider: Provider{Input: "/srv/in", Output: "/srv/in/out", Watch: true}}
	for _, c := range []struct {
		err           error
		severity      finding.Severity
		object, field string
	}{
		{&fs.PathError{Path: "/srv/in", Err: unix.EIO}, finding.Error, "input folder", "/srv/in"},
		{&fs.PathError{Path: "/srv/in/calls", Err: unix.EACCES}, finding.Error, "input folder", "/srv/in/calls"},
		{&fs.PathError{Path: "/srv/in/out/state/.new-1", Err: unix.ENOSPC}, finding.Warning, "output folder", "/srv/in/out/state"},
		{errors.New("choose port"), finding.Error, "operator", "log"},
	} {
		f := l.folderFault(failure{err: errors.Join(c.err, errors.New("another"))})
		if f.Severity != c.severity || f.Object != c.object || f.Field != c.field || f.Remedy == "" {
			t.Errorf("%v: %+v", c.err, f)
		}
	}
}

// An address that the host had is reported when the host no longer has it. An address that a router forwards is never
// reported.
func TestAddressesThatLeftTheHost(t *testing.T) {
	publishes := func(address string) *loop {
		c := config.Config{Listeners: []config.Listener{{PublicAddress: address}}}
		return &loop{published: map[types.NamespacedName]config.Config{{Namespace: "calls", Name: "door"}: c}}
	}
	l := publishes("127.0.0.1")
	l.updateAddresses()
	if l.saved.Addresses["127.0.0.1"] != "calls/door" {
		t.Errorf("addresses %v", l.saved.Addresses)
	}
	l = publishes("198.51.100.9")
	l.updateAddresses()
	if len(l.saved.Addresses) > 0 {
		t.Errorf("a forwarded address is one of the host: %v", l.saved.Addresses)
	}
	l.saved.Addresses = map[string]string{"198.51.100.9": "calls/door", "198.51.100.10": "calls/old"}
	l.updateAddresses()
	found := (&hostState{addresses: l.saved.Addresses}).addressFaults()
	if len(found) != 1 || found[0].Severity != finding.Error || found[0].Object != "Gateway calls/door" {
		t.Errorf("found %+v", found)
	}
}

// If another listener has the wanted port, the report names that listener. A port below 1024 is a remark.
func TestPortsThatMoved(t *testing.T) {
	s := hostState{ports: map[string]assignment{
		"calls/door udp udp": {Wanted: 3478, Port: 3478}, "calls/other udp udp": {Wanted: 3478, Port: 20001},
		"calls/door tls tcp": {Wanted: 443, Port: 20002}, "calls/door (health) tcp": {Port: 20003},
	}}
	found := map[string]finding.Finding{}
	for _, f := range s.portFaults() {
		found[f.Object+" "+f.Field] = f
	}
	moved, low := found["Gateway calls/other spec.listeners[udp].port"], found["Gateway calls/door spec.listeners[tls].port"]
	if len(found) != 2 || moved.Severity != finding.Warning || low.Severity != finding.Info ||
		!strings.Contains(moved.Problem, "port 3478/udp is used by listener udp of Gateway calls/door, so the listener has port 20001") {
		t.Errorf("found %+v", found)
	}
}

// An auth service that was connected is reported until it connects again, also after a restart of the operator, and for
// a day.
func TestDisconnectedAuthServicesAreReported(t *testing.T) {
	now := time.Now()
	var a authServices
	a.restore(nil, now)
	count := func(a *authServices, at time.Time) int { return len(a.faults(at)) }
	if a.serving("pod", inspection.Dataplane, true, now) || !a.serving("host", inspection.Auth, true, now) || count(&a, now) != 0 {
		t.Errorf("connected: %+v", a.faults(now))
	}
	var next authServices
	next.restore(a.current(now), now)
	if count(&next, now) != 0 || count(&next, now.Add(reconnectTime)) != 1 {
		t.Error("after a restart of the operator it is reported at once, or never")
	}
	next.serving("host", inspection.Auth, true, now)
	next.serving("host", inspection.Auth, false, now)
	if count(&next, now.Add(time.Hour)) != 1 || count(&next, now.Add(25*time.Hour)) != 0 {
		t.Errorf("disconnected: %+v", next.all)
	}
	var replaced authServices
	replaced.restore(map[string]authService{"first": {Lost: now}}, now)
	if replaced.serving("second", inspection.Auth, true, now); count(&replaced, now) != 0 {
		t.Errorf("a container that was created anew: %+v", replaced.all)
	}
	for i := range 2 * maxAuthServices {
		replaced.serving(fmt.Sprintf("host-%d", i), inspection.Auth, true, now)
	}
	if replaced.serving("two\nlines", inspection.Auth, true, now); len(replaced.all) != maxAuthServices {
		t.Errorf("%d auth services are remembered", len(replaced.all))
	}
}
