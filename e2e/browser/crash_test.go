package browser

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
)

var crashes = flag.Int("crashes", 5, "calls of TestBrowserCrash, one crash each")

// A call with video and data, between two peers that are both relayed, goes on when stunnerd is killed: its supervisor
// starts it again, and it restores the sessions.
func TestBrowserCrash(t *testing.T) {
	bin := bedtest.Build(t, bed.Stunnerd)
	page := httptest.NewServer(http.FileServer(http.Dir(".")))
	t.Cleanup(page.Close)
	var gaps, usuals, losses []float64
	for i := range *crashes {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			usual, gap, lost := crash(t, bin, page.URL)
			t.Logf("longest time without RTP %.0f ms, without a crash %.0f ms; %.0f messages lost", gap, usual, lost)
			// A message is sent every 20 ms. On a busy machine the next process starts later.
			if gap > 1000 || lost > 3+max(0, gap-usual)/20 {
				t.Errorf("longest time without RTP %.0f ms, without a crash %.0f ms; %.0f messages lost", gap, usual, lost)
			}
			gaps, usuals, losses = append(gaps, gap), append(usuals, usual), append(losses, lost)
		})
	}
	middle := func(all []float64) float64 {
		slices.Sort(all)
		return all[len(all)/2]
	}
	gap, usual, lost := middle(gaps), middle(usuals), middle(losses)
	t.Logf("of %d calls: time without RTP at most %.0f ms, median %.0f ms; without a crash median %.0f ms; messages lost "+
		"at most %.0f, median %.0f", *crashes, slices.Max(gaps), gap, usual, slices.Max(losses), lost)
	if gap > 250 && gap > usual+100 || lost > 3 {
		t.Errorf("median of the longest times without RTP %.0f ms, without a crash %.0f ms; %.0f messages lost", gap, usual, lost)
	}
}

// crash makes a call, and kills stunnerd. It returns the longest times in ms without RTP before and after, and the number
// of messages that were lost by the crash.
func crash(t *testing.T, bin, pageURL string) (usual, gap, lost float64) {
	port, health := bedtest.Port(t), bedtest.Address(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(crashConfig, health, bedtest.Address(t), user, password, port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := bedtest.Start(t, bed.Command{
		Name: "stunnerd", Path: filepath.Join(bin, "stunnerd"), Logs: t.TempDir(), Env: []string{"STUNNER_ADDR=127.0.0.1"},
		Args: []string{"--supervise", "--watch", "--config", file, "--id", "meet/crash", "--state-dir", t.TempDir(),
			"--healthcheck-endpoint", "http://" + health},
	}, bed.Answers("http://"+health+"/ready", http.StatusOK))
	server, err := json.Marshal(bed.ICEServer{
		URLs: []string{fmt.Sprintf("turn:127.0.0.1:%d?transport=udp", port)}, Username: user, Credential: password,
	})
	if err != nil {
		t.Fatal(err)
	}
	call := chromium.Open(t, pageURL+"/call.html#"+url.PathEscape(string(server)))
	flows := func() chromium.Report {
		t.Helper()
		n := call.Reports("the call runs", func(r chromium.Report) bool { return r.Verdict == "running" }).Received
		return call.Reports("messages arrive", func(r chromium.Report) bool { return r.Received >= n+100 })
	}
	flows()
	call.Tell("stop")
	before := flows()
	call.Tell("stop")
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.PID(), p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	after := flows()
	return before.Gap, after.Gap, float64(after.Lost - before.Lost)
}

const crashConfig = `version: v1
admin: {name: meet/crash, healthcheck_endpoint: "http://%s", metrics_endpoint: "http://%s/metrics"}
auth: {type: static, realm: meet.example.org, credentials: {username: %s, password: %s}}
listeners: [{name: meet/crash/udp, protocol: TURN-UDP, port: %d, routes: [meet/relays]}]
clusters: [{name: meet/relays, type: STATIC, endpoints: ["127.0.0.1"]}]
`
