// Package host runs dataplanes as processes of this host, one for each Gateway, and restarts them when they end. The
// processes continue when the operator ends, unless Settings.Bound is set, and the next operator adopts them.
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

// Settings are common to all dataplanes.
type Settings struct {
	// Program is the stunnerd executable; "" runs nothing.
	Program string
	// Origin is the URL of config discovery, TokenFile the file with its bearer token; "" if it needs none.
	Origin, TokenFile string
	// Address is the relay address.
	Address string
	// LastGood is the folder of last good configs, Logs the folder of log files.
	LastGood, Logs string
	// Bound ends the processes with the operator, even if the operator is killed.
	Bound bool
	// StopGrace is the time between SIGTERM and SIGKILL.
	StopGrace time.Duration
	// Changed is called after each change of a process and must not block. Restarted is called when a process has ended
	// unexpectedly.
	Changed, Restarted func()
	Log                *slog.Logger
}

// Dataplanes are the processes of all Gateways. The methods must not be called concurrently.
type Dataplanes struct {
	settings Settings
	running  map[types.NamespacedName]*plane
	// relays are the port ranges of relays, MIN-MAX; "" means any port.
	relays map[types.NamespacedName]string
}

// New returns an empty set of processes. Adopt and Ensure add to it.
func New(s Settings) *Dataplanes {
	return &Dataplanes{
		settings: s, running: map[types.NamespacedName]*plane{}, relays: map[types.NamespacedName]string{},
	}
}

// plane is the process of one Gateway.
type plane struct {
	*process
	leaving bool // Stop was called
	forget  bool // remove the state of the Gateway after the end
}

// fileName returns the name of a Gateway's files. Neither part can contain an underscore.
func fileName(key types.NamespacedName) string { return key.Namespace + "_" + key.Name }

// lastGood returns the folder of a Gateway's last good config.
func (d *Dataplanes) lastGood(key types.NamespacedName) string {
	return filepath.Join(d.settings.LastGood, fileName(key))
}

// Served reports whether a Gateway has had a process that was not dropped. A restarted process then serves its last
// good config.
func (d *Dataplanes) Served(key types.NamespacedName) bool {
	_, err := os.Stat(d.lastGood(key))
	return err == nil
}

// command returns the command of a Gateway's process.
func (d *Dataplanes) command(key types.NamespacedName) command {
	env := []string{
		addressVariable + "=" + d.settings.Address,
		"STUNNER_NAMESPACE=" + key.Namespace,
		"STUNNER_NAME=" + key.Name,
		stateVariable + "=" + d.lastGood(key),
		// The default port of the probes is the same for all processes: the config assigns one to each.
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

// Adopt adopts the running processes of a previous operator.
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
			d.settings.Log.Info("adopt a running dataplane", "gateway", key, "pid", o.pid)
			d.relays[key] = variable(o.command.Env, relaysVariable)
			d.begin(key, o.command, &o)
		}
	}
	return nil
}

func (d *Dataplanes) begin(key types.NamespacedName, c command, adopt *orphan) {
	around := surroundings{
		logs: d.settings.Logs, grace: d.settings.StopGrace, log: d.settings.Log,
		changed: d.settings.Changed, restarted: d.settings.Restarted,
	}
	d.running[key] = &plane{process: newProcess(c, around, adopt)}
}

// Relay sets the port range of a Gateway's relays, MIN-MAX; "" means any port. It takes effect with Ensure.
func (d *Dataplanes) Relay(key types.NamespacedName, ports string) { d.relays[key] = ports }

// Ensure starts the process of a Gateway. A process with other settings is replaced.
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
		d.settings.Log.Warn("replace a dataplane whose settings have changed", "gateway", key)
		d.stop(p, false)
	}
}

// Drop ends the process of a Gateway and removes its state.
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

// Reap removes processes that have ended, so that Ensure starts new ones.
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

// forget removes the last good config of a deleted Gateway, which contains secrets.
func (d *Dataplanes) forget(key types.NamespacedName) {
	delete(d.relays, key)
	if err := os.RemoveAll(d.lastGood(key)); err != nil {
		d.settings.Log.Warn("cannot remove the last good config of a deleted Gateway", "gateway", key, "error", err)
	}
}

// Gateways returns the sorted Gateways that have a process.
func (d *Dataplanes) Gateways() []types.NamespacedName {
	keys := make([]types.NamespacedName, 0, len(d.running))
	for key := range d.running {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

// HoldsPorts reports whether the process of a Gateway has its sockets open, or is about to open them. Its ports must
// not be tried then.
func (d *Dataplanes) HoldsPorts(gateway string) bool {
	for key, p := range d.running {
		if key.String() == gateway {
			now := p.Health().Phase
			return now != waiting && now != ended
		}
	}
	return false
}

// Health describes the state of a Gateway's process; "" if it has none.
func (d *Dataplanes) Health(key types.NamespacedName) string {
	if p := d.running[key]; p != nil {
		return p.Health().String()
	}
	return ""
}

// LogFile returns the log file of a Gateway's process.
func (d *Dataplanes) LogFile(key types.NamespacedName) string {
	return logFile(d.settings.Logs, fileName(key))
}

// Close ends all processes concurrently and waits for them, or leaves them running.
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
			d.settings.Log.Error("a dataplane did not end", "gateway", key)
		}
	}
}
