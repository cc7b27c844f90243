package forward

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// a call with video and data between two relayed peers in a browser is not disturbed when its datagrams arrive at
// another pod.
func TestBrowserContinuesAtAnotherPod(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	owner, front := g.pod(), g.pod()
	g.config.Clusters[0].Endpoints = append(g.config.Clusters[0].Endpoints, owner.addr.Addr().String())
	g.discovery.Publish(g.config)
	owner.start()
	front.start()
	g.awaitPeers(owner, front)
	g.sendAll(owner)
	page := g.browse()
	messages := func() chromium.Report {
		t.Helper()
		n := page.Reports("the call runs", func(r chromium.Report) bool { return r.Verdict == "running" }).Received
		return page.Reports("messages arrive", func(r chromium.Report) bool { return r.Received >= n+100 })
	}
	messages() // includes the start of the video
	page.Tell("stop")
	before := messages()
	page.Tell("stop")
	g.sendAll(front)
	must(t, g.net.Forget(owner.addr.Addr()))
	after := messages()
	lost := after.Lost - before.Lost
	t.Logf("longest time without RTP %.0f ms, without a move %.0f ms; %d messages lost", after.Gap, before.Gap, lost)
	if after.Gap > max(250, before.Gap+100, 3*before.Gap) { // on a busy machine RTP is late without a move too
		t.Errorf("longest time without RTP %.0f ms, without a move %.0f ms", after.Gap, before.Gap)
	}
	// A message is sent every 20 ms. Messages to a peer are lost until that peer has sent something through the pod that
	// forwards its datagrams.
	if lost > 3 && float64(lost) > before.Gap/20 {
		t.Errorf("%d messages lost", lost)
	}
	if f, o := front.forwarding(), owner.forwarding(); f.Answered < 100 || o.Delivered < 100 {
		t.Errorf("the datagrams were not forwarded: front %+v, owner %+v", f, o)
	}
}

// sendAll makes the nodes send new clients of the Service to a pod.
func (g *gateway) sendAll(to *pod) {
	g.t.Helper()
	if err := g.net.Serve([]topology.ServicePort{{
		Addresses: []netip.Addr{g.service.Addr()}, Protocol: "udp", Port: port, KeepSource: true,
		Endpoints: []netip.AddrPort{to.addr},
	}}); err != nil {
		g.t.Fatal(err)
	}
}

// browse opens a page with a call between two relayed peers in a browser of the clients.
func (g *gateway) browse() *chromium.Page {
	t := g.t
	t.Helper()
	var l net.Listener
	var err error
	g.net.Clients.Do(func() { l, err = net.Listen("tcp", harness.Loopback+":0") })
	must(t, err)
	files := http.FileServer(http.Dir(filepath.Join(harnesstest.Root(t), "e2e/browser")))
	server := &http.Server{Handler: files, ReadHeaderTimeout: time.Minute}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	relays, err := json.Marshal(harness.ICEServer{
		URLs: []string{fmt.Sprintf("turn:%s?transport=udp", g.service)}, Username: user, Credential: password,
	})
	must(t, err)
	start := func(c *exec.Cmd) (err error) {
		g.net.Clients.Do(func() { err = c.Start() })
		return err
	}
	return chromium.OpenBy(t, start, fmt.Sprintf("http://%s/call.html#%s", l.Addr(), url.PathEscape(string(relays))))
}
