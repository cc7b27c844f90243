package forward

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// TestBrowserGoesOnAtAnotherPod: a browser does not notice that its datagrams arrive at another pod in the middle
// of a call with video and data. Unlike the clients of the other tests, a browser ignores answers that do not come from
// the address of the Service, so the owner must answer through the other pod.
func TestBrowserGoesOnAtAnotherPod(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	owner := w.pod(1)
	// Both peers of the page are relayed by the owner.
	c := w.config()
	c.Clusters[0].Endpoints = append(c.Clusters[0].Endpoints, owner.addr.String())
	w.discovery.Publish(c)
	owner.start()
	front := w.add(2)
	owner.awaitPeers(1)
	front.awaitPeers(1)
	w.sendRest(owner)
	page := w.browse()
	flows := func() chromium.Report {
		t.Helper()
		n := page.Reports("the call runs", func(r chromium.Report) bool { return r.Verdict == "running" }).Received
		return page.Reports("messages arrive", func(r chromium.Report) bool { return r.Received >= n+200 })
	}
	flows() // includes the start of the video
	page.Tell("stop")
	before := flows()
	page.Tell("stop")
	w.sendRest(front)
	after := flows()
	lost := after.Lost - before.Lost
	t.Logf("longest time without RTP %.0f ms, without a move %.0f ms; %d messages lost", after.Gap, before.Gap, lost)
	if after.Gap > 250 && after.Gap > before.Gap+100 {
		t.Errorf("longest time without RTP %.0f ms, without a move %.0f ms", after.Gap, before.Gap)
	}
	// A message is sent every 20 ms. Those to a peer are lost until that peer has sent something by the front.
	if lost > 3 && float64(lost) > before.Gap/20 {
		t.Errorf("%d messages lost", lost)
	}
	if f, o := front.forwarding(), owner.forwarding(); f.Answered < 200 || o.Delivered < 200 {
		t.Errorf("the datagrams were not forwarded: front %+v, owner %+v", f, o)
	}
}

// browse opens a page with a call between two relayed peers in a browser whose datagrams the node sends with sendRest.
func (w *world) browse() *chromium.Page {
	t := w.t
	t.Helper()
	l, err := net.Listen("tcp", "10.80.100.1:0")
	if err != nil {
		t.Fatal(err)
	}
	files := http.FileServer(http.Dir(filepath.Join(bedtest.Root(t), "e2e/browser")))
	server := &http.Server{Handler: files, ReadHeaderTimeout: time.Second}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	relays, err := json.Marshal(bed.ICEServer{
		URLs: []string{fmt.Sprintf("turn:%s?transport=udp", service)}, Username: user, Credential: password,
	})
	if err != nil {
		t.Fatal(err)
	}
	start := func(c *exec.Cmd) (err error) {
		w.clients.Do(func() { err = c.Start() })
		return err
	}
	return chromium.OpenBy(t, start, fmt.Sprintf("http://%s/call.html#%s", l.Addr(), url.PathEscape(string(relays))))
}
