package offload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// The black-box prober finds no failure while the kernel forwards. With engine TC, its verdicts are the same in user
// space.
func prober(t *testing.T, g *gateway) {
	t.Helper()
	with := g.probe()
	k := g.counters().kernel
	if k.up == 0 || k.down == 0 {
		t.Errorf("the kernel has forwarded %+v of the prober", k)
	}
	if g.status().Offload.Mechanism != "TCX" {
		return
	}
	g.apply(func(c *config.Config) { c.Admin.OffloadEngine = "None" })
	if without := g.probe(); !maps.Equal(with, without) {
		t.Errorf("verdicts in the kernel:\n%v\nin user space:\n%v", with, without)
	}
	if after := g.counters().kernel; after != k {
		t.Errorf("engine None: the kernel has forwarded %+v, and then %+v", k, after)
	}
}

// probe runs the prober over both families at the same time, with its peers in the namespace of the clients. It returns
// the verdicts by family and check.
func (g *gateway) probe() (verdicts map[string]string) {
	g.t.Helper()
	type run struct {
		family   family
		command  *exec.Cmd
		out, log bytes.Buffer
	}
	var runs []*run
	for _, f := range families {
		server := netip.AddrPortFrom(f.gateway, uint16(g.Plain))
		r := &run{family: f, command: exec.Command(filepath.Join(g.programs, "turnprobe"), "-json", "-user", user,
			"-password", password, "-server", server.String(), "-peer", f.client.String())}
		r.command.Stdout, r.command.Stderr = &r.out, &r.log
		var err error
		g.clients.Do(func() { err = r.command.Start() })
		harnesstest.NoError(g.t, err)
		runs = append(runs, r)
	}
	verdicts = map[string]string{}
	for _, r := range runs {
		ended := r.command.Wait()
		var report struct {
			Checks []struct{ ID, RFC, Says, Verdict, Reason string } `json:"checks"`
		}
		if err := json.Unmarshal(r.out.Bytes(), &report); err != nil {
			g.t.Fatalf("prober over %s: %v, %v: %s", r.family.name, ended, err, &r.log)
		}
		for _, c := range report.Checks {
			if c.ID == "T-08 time" { // this check compares times, which needs an idle machine
				continue
			}
			verdicts[fmt.Sprintf("%s %s", r.family.name, c.ID)] = c.Verdict
			if c.Verdict == "fail" {
				g.t.Errorf("%s: %s (RFC %s): %s: %s", r.family.name, c.ID, c.RFC, c.Says, c.Reason)
			}
		}
	}
	return verdicts
}
