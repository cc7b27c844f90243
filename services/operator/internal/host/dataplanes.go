// Package host runs dataplanes as processes of this host, one for each Gateway, and restarts them when they end.
// Dataplanes.Close stops them, or leaves them running. Processes that are left running, or whose operator has crashed,
// are adopted by the next operator. With Settings.Bound they end with the operator.
//
// # Files
//
//	dataplanes.go  the set of processes
//	process.go     start, restart and end of one process
//	adopt.go       processes of an earlier operator
//	upgrade.go     a new program file
//	faults.go      why a process does not serve, and which program has a port
package host

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Settings are the settings that all dataplanes have in common.
type Settings struct {
	// Program is the path of the stunnerd executable; with "", no process is started.
	Program string
	// Origin is the URL of config discovery. TokenFile is the file with the bearer token for config discovery; "" if no
	// token is needed.
	Origin, TokenFile string
	// Addresses are the relay addresses, at most one of each family.
	Addresses []string
	// LastGood is the folder in which dataplanes store their last good configs. Logs is the folder of their log files.
	LastGood, Logs string
	// Bound makes the dataplane processes end with the operator, even if the operator is killed.
	Bound bool
	// StopGrace is the time between SIGTERM and SIGKILL.
	StopGrace time.Duration
	// Changed is called after each change in the state of a process and must not block. Restarted is called when a
	// process has ended unexpectedly and will be restarted.
	Changed, Restarted func()
	Log                *slog.Logger
}

// Dataplanes are the processes of all Gateways. The methods must not be called concurrently.
type Dataplanes struct {
	settings Settings
	running  map[types.NamespacedName]*dataplane
	// relays are the ranges of relay ports by Gateway, as MIN-MAX; "" means any port.
	relays map[types.NamespacedName]string
}

// New returns an empty set of processes.
func New(s Settings) *Dataplanes {
	return &Dataplanes{
		settings: s, running: map[types.NamespacedName]*dataplane{}, relays: map[types.NamespacedName]string{},
	}
}

// dataplane is the process of one Gateway.
type dataplane struct {
	*process
	stopping    bool // the process is being stopped
	removeState bool // the state of the Gateway must be removed when the process has ended
}

// fileName returns the name of the files of a Gateway. The name is unique for each Gateway, because names of objects
// cannot contain an underscore.
func fileName(key types.NamespacedName) string { return key.Namespace + "_" + key.Name }

// lastGood returns the folder with a Gateway's last good config.
func (d *Dataplanes) lastGood(key types.NamespacedName) string {
	return filepath.Join(d.settings.LastGood, fileName(key))
}

// HasLastGood reports whether the folder for a Gateway's last good config exists. Ensure creates it before the first
// process of the Gateway starts, and Remove deletes it. A new process would serve the config in this folder.
func (d *Dataplanes) HasLastGood(key types.NamespacedName) bool {
	_, err := os.Stat(d.lastGood(key))
	return err == nil
}

// command returns the command that starts the process of a Gateway.
func (d *Dataplanes) command(key types.NamespacedName) command {
	env := []string{
		addressVariable + "=" + strings.Join(d.settings.Addresses, ","),
		"STUNNER_NAMESPACE=" + key.Namespace,
		"STUNNER_NAME=" + key.Name,
		stateVariable + "=" + d.lastGood(key),
		// The default port of the health check endpoint would be the same for all processes. The config assigns a port
		// to each.
		"STUNNER_HEALTHCHECK_ENDPOINT=none",
		superviseVariable + "=true",
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

// Adopt finds the running dataplanes that an earlier operator process started, and adds them to the set. It returns the
// ports that they have bound, by Gateway.
func (d *Dataplanes) Adopt() (map[string]map[Port]bool, error) {
	if d.settings.Program == "" {
		return nil, nil
	}
	found, err := orphans(d.settings.Program, d.settings.LastGood)
	if err != nil {
		return nil, err
	}
	bound := map[string]map[Port]bool{}
	for name, o := range found {
		if namespace, gateway, ok := strings.Cut(name, "_"); ok {
			key := types.NamespacedName{Namespace: namespace, Name: gateway}
			d.settings.Log.Info("adopt a running dataplane", "gateway", key, "pid", o.pid)
			d.relays[key] = variable(o.command.Env, relaysVariable)
			d.add(key, o.command, &o)
			bound[key.String()] = o.bound
		}
	}
	return bound, nil
}

func (d *Dataplanes) add(key types.NamespacedName, c command, adopt *orphan) {
	common := processSettings{
		logs: d.settings.Logs, grace: d.settings.StopGrace, poll: upgradePoll, log: d.settings.Log,
		changed: d.settings.Changed, restarted: d.settings.Restarted,
	}
	d.running[key] = &dataplane{process: newProcess(c, common, adopt)}
}

// SetRelayPorts sets the range of a Gateway's relay ports as MIN-MAX; "" means any port. The next call of Ensure
// applies the range.
func (d *Dataplanes) SetRelayPorts(key types.NamespacedName, ports string) { d.relays[key] = ports }

// Ensure starts a process for a Gateway if none is running. If the running process has other settings, it is stopped,
// and the next call of Ensure after RemoveEnded starts a new process.
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
		d.add(key, want, nil)
	case !p.stopping && !p.command.satisfies(want):
		d.settings.Log.Warn("replace a dataplane whose settings have changed", "gateway", key)
		d.stop(p, false)
	}
}

// Remove stops the process of a Gateway and removes its state.
func (d *Dataplanes) Remove(key types.NamespacedName) {
	if p := d.running[key]; p != nil {
		d.stop(p, true)
	} else if d.HasLastGood(key) {
		d.removeState(key)
	}
}

func (d *Dataplanes) stop(p *dataplane, removeState bool) {
	p.removeState = p.removeState || removeState
	if !p.stopping {
		p.stopping = true
		p.Stop()
	}
}

// RemoveEnded removes processes that were stopped and have ended, so that Ensure can start new ones.
func (d *Dataplanes) RemoveEnded() {
	for key, p := range d.running {
		if !p.stopping || p.Health().Phase != ended {
			continue
		}
		delete(d.running, key)
		if p.removeState {
			d.removeState(key)
		}
		d.settings.Changed()
	}
}

// removeState removes the last good config of a deleted Gateway, because it contains secrets.
func (d *Dataplanes) removeState(key types.NamespacedName) {
	delete(d.relays, key)
	if err := os.RemoveAll(d.lastGood(key)); err != nil {
		d.settings.Log.Warn("cannot remove the last good config of a deleted Gateway", "gateway", key, "error", err)
	}
}

// Gateways returns the Gateways that have a process, in no particular order.
func (d *Dataplanes) Gateways() []types.NamespacedName {
	return slices.Collect(maps.Keys(d.running))
}

// settleTime is how long the children of a process may take to end and to release its ports, after the process has
// ended unexpectedly.
const settleTime = 2 * time.Second

// HoldsPorts reports whether the process of a Gateway has bound its ports or is about to bind them. In this case, it
// must not be tested whether these ports are free, because the test itself binds them for a moment.
func (d *Dataplanes) HoldsPorts(gateway string) bool {
	for key, p := range d.running {
		if key.String() == gateway {
			now := p.Health()
			if n := len(now.Ends); now.Phase == waiting && n > 0 && time.Since(now.Ends[n-1]) < settleTime {
				return true
			}
			return now.Phase != waiting && now.Phase != ended
		}
	}
	return false
}

// Health describes the state of a Gateway's process for status.txt; "" if the Gateway has no process.
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

// Close stops all processes concurrently and waits until they have ended, but at most five seconds longer than
// StopGrace. If leave is true, it waits only for processes that Ensure or Remove has stopped, and leaves the others
// running.
func (d *Dataplanes) Close(leave bool) {
	for _, p := range d.running {
		switch {
		case p.stopping:
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
