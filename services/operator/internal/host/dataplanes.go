// Package host runs dataplanes as processes of this host, one for each Gateway, and keeps them running until they are told to end. Processes
// outlive the operator that has started them, unless they are bound to it; the next one takes them over.
package host

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Settings are what all dataplanes have in common.
type Settings struct {
	// Program serves a Gateway. Without one nothing is run.
	Program string
	// Origin is where processes find config discovery, TokenFile where its bearer token lies, if it wants one.
	Origin, TokenFile string
	// Address is the relay address.
	Address string
	// LastGood is the folder of last good configs, Logs the one of what processes write.
	LastGood, Logs string
	// Bound makes processes end together with the operator, however it ends.
	Bound bool
	// StopGrace is how long a process may take to end.
	StopGrace time.Duration
	// Changed is called after each change of a process and must not block. Restarted is called for each process that has ended by itself.
	Changed, Restarted func()
	Log                *slog.Logger
}

// Dataplanes are the processes of all Gateways. All methods are for one goroutine.
type Dataplanes struct {
	settings Settings
	running  map[types.NamespacedName]*plane
	// relays are the ports of relays, MIN-MAX; "" leaves the choice to the kernel.
	relays map[types.NamespacedName]string
}

// New looks after nothing yet: Adopt does, and Ensure.
func New(s Settings) *Dataplanes {
	return &Dataplanes{settings: s, running: map[types.NamespacedName]*plane{}, relays: map[types.NamespacedName]string{}}
}

// plane is the process of one Gateway.
type plane struct {
	*process
	leaving bool // it has been told to stop
	forget  bool // and its Gateway with it
}

// fileName names a Gateway's files. Neither part can contain an underscore.
func fileName(key types.NamespacedName) string { return key.Namespace + "_" + key.Name }

// lastGood is where the process of a Gateway keeps its last good config.
func (d *Dataplanes) lastGood(key types.NamespacedName) string {
	return filepath.Join(d.settings.LastGood, fileName(key))
}

// Served tells whether a Gateway has ever had a process that it has not lost: one that starts again then serves its last good config.
func (d *Dataplanes) Served(key types.NamespacedName) bool {
	_, err := os.Stat(d.lastGood(key))
	return err == nil
}

// command is what serves a Gateway.
func (d *Dataplanes) command(key types.NamespacedName) command {
	env := []string{
		addressVariable + "=" + d.settings.Address,
		"STUNNER_NAMESPACE=" + key.Namespace,
		"STUNNER_NAME=" + key.Name,
		stateVariable + "=" + d.lastGood(key),
		// The usual port of the probes is one for all processes of a host: each gets one of its own with its config.
		"STUNNER_HEALTHCHECK_ENDPOINT=none",
	}
	if ports := d.relays[key]; ports != "" {
		env = append(env, relaysVariable+"="+ports)
	}
	if d.settings.TokenFile != "" {
		env = append(env, "STUNNER_DISCOVERY_TOKEN_FILE="+d.settings.TokenFile)
	}
	return command{Name: fileName(key), Path: d.settings.Program, Bound: d.settings.Bound,
		Args: []string{"-w", "-c", d.settings.Origin, "-i", key.String()}, Env: env}
}

// Adopt takes over the processes that an earlier operator left running.
func (d *Dataplanes) Adopt() error {
	if d.settings.Program == "" {
		return nil
	}
	found, err := orphans(d.settings.Program, d.settings.LastGood)
	if err != nil {
		return err
	}
	for name, o := range found {
		if namespace, gateway, ok := strings.Cut(name, "_"); ok {
			key := types.NamespacedName{Namespace: namespace, Name: gateway}
			d.settings.Log.Info("takes over a running dataplane", "gateway", key, "pid", o.pid)
			d.relays[key] = variable(o.command.Env, relaysVariable)
			d.begin(key, o.command, &o)
		}
	}
	return nil
}

func (d *Dataplanes) begin(key types.NamespacedName, c command, adopt *orphan) {
	around := surroundings{logs: d.settings.Logs, grace: d.settings.StopGrace, log: d.settings.Log, changed: d.settings.Changed, restarted: d.settings.Restarted}
	d.running[key] = &plane{process: newProcess(c, around, adopt)}
}

// Relay says which ports the relays of a Gateway may have, as MIN-MAX; "" leaves the choice to the kernel. It takes effect with Ensure.
func (d *Dataplanes) Relay(key types.NamespacedName, ports string) { d.relays[key] = ports }

// Ensure makes a Gateway have a process. One that was started for other settings is replaced.
func (d *Dataplanes) Ensure(key types.NamespacedName) {
	if d.settings.Program == "" {
		return
	}
	want := d.command(key)
	switch p := d.running[key]; {
	case p == nil:
		if err := os.MkdirAll(d.lastGood(key), 0o700); err != nil {
			d.settings.Log.Warn("dataplane cannot keep its last good config", "gateway", key, "error", err)
		}
		d.begin(key, want, nil)
	case !p.leaving && !p.command.serves(want):
		d.settings.Log.Warn("dataplane is replaced: its settings have changed", "gateway", key)
		d.stop(p, false)
	}
}

// Drop ends the process of a Gateway for good.
func (d *Dataplanes) Drop(key types.NamespacedName) {
	if p := d.running[key]; p != nil {
		d.stop(p, true)
	} else if d.Served(key) {
		d.forget(key)
	}
}

func (d *Dataplanes) stop(p *plane, forget bool) {
	p.forget = p.forget || forget
	if !p.leaving {
		p.leaving = true
		p.Stop()
	}
}

// Reap forgets processes that have ended, so that Ensure starts anew.
func (d *Dataplanes) Reap() {
	for key, p := range d.running {
		if !p.leaving || p.Health().Phase != ended {
			continue
		}
		delete(d.running, key)
		if p.forget {
			d.forget(key)
		}
		d.settings.Changed()
	}
}

// forget removes the last good config of a Gateway that is gone: it holds secrets.
func (d *Dataplanes) forget(key types.NamespacedName) {
	delete(d.relays, key)
	if err := os.RemoveAll(d.lastGood(key)); err != nil {
		d.settings.Log.Warn("last good config of a removed gateway stays", "gateway", key, "error", err)
	}
}

// Gateways returns the Gateways, sorted, that have a process.
func (d *Dataplanes) Gateways() []types.NamespacedName {
	keys := make([]types.NamespacedName, 0, len(d.running))
	for key := range d.running {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

// HoldsPorts tells whether the process of a Gateway has its sockets open, or is about to: nobody must try them out then.
func (d *Dataplanes) HoldsPorts(gateway string) bool {
	for key, p := range d.running {
		if key.String() == gateway {
			now := p.Health().Phase
			return now != waiting && now != ended
		}
	}
	return false
}

// Health says how the process of a Gateway is, nothing when it has none.
func (d *Dataplanes) Health(key types.NamespacedName) string {
	if p := d.running[key]; p != nil {
		return p.Health().String()
	}
	return ""
}

// LogFile is what the process of a Gateway writes.
func (d *Dataplanes) LogFile(key types.NamespacedName) string {
	return logFile(d.settings.Logs, fileName(key))
}

// Close ends all processes side by side and waits for them, or leaves them running.
func (d *Dataplanes) Close(leave bool) {
	for _, p := range d.running {
		switch {
		case p.leaving:
		case leave:
			p.Leave()
		default:
			p.Stop()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.settings.StopGrace+5*time.Second)
	defer cancel()
	for key, p := range d.running {
		select {
		case <-p.Done():
		case <-ctx.Done():
			d.settings.Log.Error("dataplane does not end", "gateway", key)
		}
	}
}
