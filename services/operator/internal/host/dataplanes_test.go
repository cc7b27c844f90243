package host

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// newDataplanes returns processes of this test binary, which wait for a signal.
func newDataplanes(t *testing.T, change func(*Settings)) *Dataplanes {
	t.Helper()
	t.Setenv(roleVariable, "serve")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := Settings{Program: program, Origin: "http://127.0.0.1:1", Addresses: []string{"127.0.0.1"}, LastGood: t.TempDir(), Logs: t.TempDir(),
		StopGrace: 5 * time.Second, Changed: func() {}, Restarted: func() {}, Log: slog.New(slog.DiscardHandler)}
	change(&s)
	d := New(s)
	t.Cleanup(func() { d.Close(false) })
	return d
}

func (d *Dataplanes) awaitHealth(t *testing.T, key types.NamespacedName, text string) string {
	t.Helper()
	until(t, key.String()+" is "+text, func() bool { return strings.Contains(d.Health(key), text) })
	return d.Health(key)
}

func TestAGatewayHasOneDataplaneUntilItIsDropped(t *testing.T) {
	d := newDataplanes(t, func(*Settings) {})
	door := types.NamespacedName{Namespace: "calls", Name: "door"}
	if d.HasLastGood(door) || d.HoldsPorts(door.String()) || d.Health(door) != "" {
		t.Error("a Gateway has a dataplane before anybody has asked for one")
	}
	d.Ensure(door)
	health := d.awaitHealth(t, door, "running, pid ")
	d.Ensure(door)
	if again := d.Health(door); again != health {
		t.Errorf("a second Ensure has changed %q to %q", health, again)
	}
	if !d.HasLastGood(door) || !d.HoldsPorts(door.String()) || !slices.Equal(d.Gateways(), []types.NamespacedName{door}) {
		t.Errorf("served %t, holds ports %t, gateways %v", d.HasLastGood(door), d.HoldsPorts(door.String()), d.Gateways())
	}
	d.Remove(door)
	d.awaitHealth(t, door, string(ended))
	d.RemoveEnded()
	if _, err := os.Stat(d.lastGood(door)); !errors.Is(err, fs.ErrNotExist) || len(d.Gateways()) != 0 {
		t.Errorf("after the drop: %v, gateways %v", err, d.Gateways())
	}
}

func TestTheNextOperatorAdoptsOrReplacesDataplanes(t *testing.T) {
	door := types.NamespacedName{Namespace: "calls", Name: "door"}
	first := newDataplanes(t, func(*Settings) {})
	first.Ensure(door)
	first.awaitHealth(t, door, "running")
	pid := first.running[door].Health().PID
	first.Close(true)

	second := newDataplanes(t, func(s *Settings) { *s = first.settings })
	if _, err := second.Adopt(); err != nil {
		t.Fatal(err)
	}
	second.awaitHealth(t, door, "started by an earlier operator")
	second.Ensure(door)
	if h := second.running[door].Health(); h.PID != pid {
		t.Errorf("took over %s, want pid %d", h, pid)
	}
	second.Close(true)

	third := newDataplanes(t, func(s *Settings) { *s = first.settings; s.Origin = "http://127.0.0.1:2" })
	if _, err := third.Adopt(); err != nil {
		t.Fatal(err)
	}
	third.awaitHealth(t, door, "running")
	third.Ensure(door)
	third.awaitHealth(t, door, string(ended))
	third.RemoveEnded()
	third.Ensure(door)
	third.awaitHealth(t, door, "running")
	if h := third.running[door].Health(); h.PID == pid || h.Adopted {
		t.Errorf("a process that listens elsewhere serves: %s", h)
	}
}

// A process is replaced if its port range changes, and adopted if not.
func TestADataplaneHasTheRelayPortsThatAreWanted(t *testing.T) {
	door := types.NamespacedName{Namespace: "calls", Name: "door"}
	d := newDataplanes(t, func(*Settings) {})
	var first int
	for _, ports := range []string{"40000-40999", "40000-40999", "41000-41999", ""} {
		d.SetRelayPorts(door, ports)
		d.Ensure(door)
		if p := d.running[door]; p.stopping {
			d.awaitHealth(t, door, string(ended))
			d.RemoveEnded()
			d.Ensure(door)
		}
		d.awaitHealth(t, door, "running, pid ")
		pid := d.running[door].Health().PID
		o, ok := inspect(pid)
		if got := variable(o.command.Env, relaysVariable); !ok || got != ports {
			t.Errorf("a process was started with the relay ports %q, want %q", got, ports)
		}
		if ports == "40000-40999" && first != 0 && pid != first {
			t.Error("a process is replaced though nothing has changed")
		}
		first = pid
	}
	d.SetRelayPorts(door, "42000-42999")
	d.Ensure(door)
	d.awaitHealth(t, door, string(ended))
	d.RemoveEnded()
	d.Ensure(door)
	d.awaitHealth(t, door, "running, pid ")
	pid := d.running[door].Health().PID
	d.Close(true)
	next := newDataplanes(t, func(s *Settings) { *s = d.settings })
	if _, err := next.Adopt(); err != nil {
		t.Fatal(err)
	}
	next.awaitHealth(t, door, "started by an earlier operator")
	next.Ensure(door) // before Relay is called, the previous range is kept
	if p := next.running[door]; p.stopping || p.Health().PID != pid {
		t.Errorf("a process that nobody has spoken of is replaced: %s", p.Health())
	}
}

func TestNothingIsRunWithoutAProgram(t *testing.T) {
	d := newDataplanes(t, func(s *Settings) { s.Program = "" })
	d.Ensure(types.NamespacedName{Namespace: "calls", Name: "door"})
	if _, err := d.Adopt(); err != nil || len(d.Gateways()) != 0 {
		t.Errorf("gateways %v, %v", d.Gateways(), err)
	}
}
