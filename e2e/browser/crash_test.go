package browser

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

const (
	user, password = "ann", "opens-the-door"
	// crashesOfACall is less than the number at which the supervisor ends.
	crashesOfACall = 2
)

var calls = flag.Int("crashes", 2, "calls of TestCallOfABrowserSurvivesCrashes, two crashes each")

// crash has the longest times in ms without RTP before and after a crash, and the number of lost messages.
type crash struct{ usual, gap, lost float64 }

func (c crash) String() string {
	return fmt.Sprintf("longest time without RTP %.0f ms, without a crash %.0f ms; %.0f messages lost",
		c.gap, c.usual, c.lost)
}

// A call with video and data, between two relayed peers, continues when stunnerd is killed: its supervisor starts it
// again, and it restores the sessions.
func TestCallOfABrowserSurvivesCrashes(t *testing.T) {
	bin := harnesstest.Build(t, harness.Stunnerd)
	page := httptest.NewServer(http.FileServer(http.Dir(".")))
	t.Cleanup(page.Close)
	var all []crash
	for i := range *calls {
		t.Run(strconv.Itoa(i), func(t *testing.T) { all = append(all, crashes(t, bin, page.URL)...) })
	}
	for _, c := range all {
		t.Log(c)
		if c.gap > max(1000, 4*c.usual) || c.lost > 3+inTime(c.gap) {
			t.Error(c)
		}
	}
	middle := func(of func(crash) float64) float64 {
		var values []float64
		for _, c := range all {
			values = append(values, of(c))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	median := crash{
		middle(func(c crash) float64 { return c.usual }), middle(func(c crash) float64 { return c.gap }),
		middle(func(c crash) float64 { return c.lost }),
	}
	// On a busy machine, RTP and messages are late without a crash too. The losses must be explained by the gap.
	if median.gap > 250 && median.gap > max(median.usual+100, 2*median.usual) || median.lost > 3+inTime(median.gap) {
		t.Errorf("medians: %s", median)
	}
}

// inTime returns how many messages, one every 20 ms, are sent in the part of a gap in ms that exceeds the gap on an
// idle machine.
func inTime(gap float64) float64 { return max(0, gap-60) / 20 }

// crashes makes a call, and kills stunnerd during the call.
func crashes(t *testing.T, bin, pageURL string) (all []crash) {
	d := harnesstest.StartDataplane(t, bin, config.Config{
		Auth: harnesstest.Static(user, password), Listeners: harnesstest.Listeners(harness.Loopback)[:1],
		Clusters: []config.Cluster{{Name: "test/relays", Type: config.Static, Endpoints: []string{harness.Loopback}}},
	}, []netip.Addr{netip.MustParseAddr(harness.Loopback)},
		"--supervise", "--id", "test/dataplane", "--state-dir", t.TempDir())
	server, err := json.Marshal(harness.ICEServer{
		URLs:     []string{fmt.Sprintf("turn:127.0.0.1:%d?transport=udp", d.Plain)},
		Username: user, Credential: password,
	})
	harnesstest.NoError(t, err)
	call := chromium.Open(t, pageURL+"/call.html#"+url.PathEscape(string(server)))
	flows := func() chromium.Report {
		t.Helper()
		n := call.Reports("the call runs", func(r chromium.Report) bool { return r.Verdict == "running" }).Received
		return call.Reports("messages arrive", func(r chromium.Report) bool { return r.Received >= n+100 })
	}
	flows()
	for range crashesOfACall {
		call.Tell("stop")
		before := flows()
		call.Tell("stop")
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", d.PID(), d.PID()))
		harnesstest.NoError(t, err)
		child, err := strconv.Atoi(strings.TrimSpace(string(children)))
		harnesstest.NoError(t, err)
		harnesstest.NoError(t, syscall.Kill(child, syscall.SIGKILL))
		after := flows()
		all = append(all, crash{before.Gap, after.Gap, float64(after.Lost - before.Lost)})
	}
	return all
}
