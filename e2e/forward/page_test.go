package forward

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/dtls/v3/pkg/crypto/fingerprint"
	"github.com/pion/dtls/v3/pkg/crypto/selfsign"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"
	"github.com/pion/logging"
	"github.com/pion/sctp"

	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// description is a session description of a browser.
type description struct {
	Type string `json:"type"`
	SDP  string `json:"sdp"`
}

// order is a command for a call of the page moves.html. It has the fields of that page.
type order struct {
	Number      int                 `json:"number"`
	Peer        string              `json:"peer"`
	Media       string              `json:"media"`
	ICEServers  []harness.ICEServer `json:"iceServers"`
	Description *description        `json:"description,omitempty"`

	// exchange is called with the description of the page if the peer is not in the page. Its result is the answer to
	// an offer.
	exchange func(ctx context.Context, own description) (*description, error)
}

// report is a report of the page about its call: the counters of both ends, the relayed client first, and the longest
// times in ms without a message in the latest lap.
type report struct {
	Number   int `json:"number"`
	Lap      int `json:"lap"`
	Counters []struct {
		Sent    int `json:"sent"`
		Arrived int `json:"arrived"`
	} `json:"counters"`
	Gaps    []float64 `json:"gaps"`
	Stopped bool      `json:"stopped"`
	Problem string    `json:"problem"`
}

// command is the answer to a report.
type command struct {
	Lap  int  `json:"lap"`
	Stop bool `json:"stop"`
	End  bool `json:"end"`
}

// page is the page moves.html in a browser.
type page struct {
	t      *testing.T
	orders chan order

	mu      sync.Mutex
	current order
	command command
	last    report
	changed chan struct{} // closed and replaced on every report
}

// openPage opens the page in a browser in the network of the peers. The page also contains peers, and clients cannot
// reach the addresses of pods.
func (g *gateway) openPage() *page {
	t := g.t
	t.Helper()
	p := &page{t: t, orders: make(chan order), changed: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join(harnesstest.Root(t), "e2e/forward/moves.html"))
	})
	mux.HandleFunc("GET /favicon.ico", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /next", p.next)
	mux.HandleFunc("POST /description", p.describe)
	mux.HandleFunc("POST /report", p.report)
	var l net.Listener
	var err error
	g.net.Peers.Do(func() { l, err = net.Listen("tcp", harness.Loopback+":0") })
	must(t, err)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	chromium.OpenBy(t, func(c *exec.Cmd) (err error) {
		g.net.Peers.Do(func() { err = c.Start() })
		return err
	}, fmt.Sprintf("http://%s/", l.Addr()))
	return p
}

func (p *page) next(w http.ResponseWriter, r *http.Request) {
	select {
	case o := <-p.orders:
		_ = json.NewEncoder(w).Encode(o)
	case <-r.Context().Done():
	}
}

func (p *page) describe(w http.ResponseWriter, r *http.Request) {
	var own description
	err := json.NewDecoder(r.Body).Decode(&own)
	var answer *description
	if err == nil {
		p.mu.Lock()
		exchange := p.current.exchange
		p.mu.Unlock()
		answer, err = exchange(r.Context(), own)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (p *page) report(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var now report
	if err := json.NewDecoder(r.Body).Decode(&now); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.last = now
	close(p.changed)
	p.changed = make(chan struct{})
	_ = json.NewEncoder(w).Encode(p.command)
}

func (p *page) call(o order) {
	p.t.Helper()
	p.mu.Lock()
	o.Number = p.current.Number + 1
	p.current, p.command = o, command{}
	p.mu.Unlock()
	select {
	case p.orders <- o:
	case <-time.After(limit):
		p.t.Fatal("the page does not request a call")
	}
	p.await("the call is set up", func(r report) bool { return len(r.Counters) > 0 })
}

// await waits for a report about the call of the latest order.
func (p *page) await(what string, cond func(report) bool) report {
	p.t.Helper()
	timeout := time.After(limit)
	for {
		p.mu.Lock()
		last, changed, number := p.last, p.changed, p.current.Number
		p.mu.Unlock()
		switch {
		case last.Number != number:
		case last.Problem != "":
			p.t.Fatalf("%s: %s", what, last.Problem)
		case cond(last):
			return last
		}
		select {
		case <-changed:
		case <-timeout:
			p.t.Fatalf("%s: report %+v", what, last)
		}
	}
}

// tell changes the command to the page.
func (p *page) tell(change func(*command)) command {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.command)
	return p.command
}

// lap returns the longest times without a message at each end of the call since the last lap.
func (p *page) lap() (gaps []time.Duration) {
	p.t.Helper()
	told := p.tell(func(c *command) { c.Lap++ })
	for _, ms := range p.await("a lap", func(r report) bool { return r.Lap == told.Lap }).Gaps {
		gaps = append(gaps, time.Duration(ms*float64(time.Millisecond)))
	}
	return gaps
}

// stop makes both ends of the page stop sending.
func (p *page) stop() {
	p.t.Helper()
	p.tell(func(c *command) { c.Stop = true })
	p.await("the call stops", func(r report) bool { return r.Stopped })
}

func (p *page) end() { p.tell(func(c *command) { c.End = true }) }

// counters returns the numbers of messages that an end of the page has sent and received.
func (p *page) counters(end int) (sent, arrived int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.Number != p.current.Number || end >= len(p.last.Counters) {
		return 0, 0
	}
	return p.last.Counters[end].Sent, p.last.Counters[end].Arrived
}

// browserPeer makes an ICE agent a peer of a browser, with a data channel.
type browserPeer struct {
	agent
	certificate tls.Certificate
	quiet       logging.LoggerFactory
}

func newBrowserPeer(t *testing.T, a agent) *browserPeer {
	t.Helper()
	certificate, err := selfsign.GenerateSelfSigned()
	must(t, err)
	quiet := logging.NewDefaultLoggerFactory()
	quiet.DefaultLogLevel = logging.LogLevelDisabled
	return &browserPeer{a, certificate, quiet}
}

// describe returns the session description of the peer, which is the DTLS server (RFC 8842 §5).
func (b *browserPeer) describe(kind string) (*description, error) {
	own := b.own()
	print, err := fingerprint.Fingerprint(b.certificate.Leaf, crypto.SHA256)
	if err != nil {
		return nil, err
	}
	lines := []string{"v=0", "o=- 1 1 IN IP4 127.0.0.1", "s=-", "t=0 0", "a=group:BUNDLE 0"}
	if own.Lite {
		lines = append(lines, "a=ice-lite")
	}
	setup := map[string]string{"offer": "actpass", "answer": "passive"}[kind]
	lines = append(lines, "m=application 9 UDP/DTLS/SCTP webrtc-datachannel", "c=IN IP4 0.0.0.0", "a=mid:0",
		"a=ice-ufrag:"+own.Ufrag, "a=ice-pwd:"+own.Pwd, "a=fingerprint:sha-256 "+strings.ToUpper(print), "a=setup:"+setup,
		"a=sctp-port:5000")
	for _, c := range own.Candidates {
		lines = append(lines, "a=candidate:"+c)
	}
	return &description{kind, strings.Join(lines, "\r\n") + "\r\n"}, nil
}

var sdpAttribute = regexp.MustCompile(`(?m)^a=(ice-ufrag|ice-pwd|candidate):([^\r\n]*)`)

// parseDescription returns the ICE parameters of a session description.
func parseDescription(d description) (p parameters) {
	for _, m := range sdpAttribute.FindAllStringSubmatch(d.SDP, -1) {
		switch m[1] {
		case "ice-ufrag":
			p.Ufrag = m[2]
		case "ice-pwd":
			p.Pwd = m[2]
		default:
			p.Candidates = append(p.Candidates, m[2])
		}
	}
	return p
}

// open connects the agent with the browser, and opens the data channel of moves.html.
func (b *browserPeer) open(ctx context.Context, browser parameters) (channel io.ReadWriteCloser, err error) {
	conn, err := b.connect(ctx, browser)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	secured, err := dtls.ServerWithOptions(dtlsnet.PacketConnFromConn(conn), conn.RemoteAddr(),
		dtls.WithCertificates(b.certificate), dtls.WithLoggerFactory(b.quiet),
		// browsers offer DTLS-SRTP also for calls without media
		dtls.WithSRTPProtectionProfiles(dtls.SRTP_AES128_CM_HMAC_SHA1_80))
	if err != nil {
		return nil, fmt.Errorf("DTLS: %w", err)
	}
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("DTLS: %w", err)
	}
	association, err := sctp.ClientWithOptions(sctp.WithNetConn(secured), sctp.WithLoggerFactory(b.quiet))
	if err != nil {
		return nil, fmt.Errorf("SCTP: %w", err)
	}
	stream, err := association.OpenStream(0, sctp.PayloadTypeWebRTCBinary)
	if err != nil {
		return nil, fmt.Errorf("SCTP: %w", err)
	}
	stream.SetReliabilityParams(true, sctp.ReliabilityTypeRexmit, 0)
	return dataChannel{stream}, nil
}

// dataChannel is a data channel with binary messages.
type dataChannel struct{ *sctp.Stream }

// Write sends a message as binary. The first message of the browser would change the default type of the stream.
func (c dataChannel) Write(b []byte) (int, error) {
	return c.WriteSCTP(b, sctp.PayloadTypeWebRTCBinary)
}

// callAgent makes a call between the page and an ICE agent, and returns the data channel of the agent.
func (p *page) callAgent(a agent, pageOffers bool, relays []harness.ICEServer) (channel io.ReadWriteCloser) {
	p.t.Helper()
	b := newBrowserPeer(p.t, a)
	type opened struct {
		channel io.ReadWriteCloser
		err     error
	}
	result := make(chan opened, 1)
	o := order{Peer: "test", Media: "data", ICEServers: relays}
	kind := "answer"
	if !pageOffers {
		var err error
		o.Description, err = b.describe("offer")
		must(p.t, err)
	}
	o.exchange = func(_ context.Context, own description) (answer *description, err error) {
		if pageOffers {
			answer, err = b.describe(kind)
		}
		go func() {
			ctx, cancel := context.WithTimeout(p.t.Context(), limit)
			defer cancel()
			channel, err := b.open(ctx, parseDescription(own))
			result <- opened{channel, err}
		}()
		return answer, err
	}
	p.call(o)
	select {
	case r := <-result:
		must(p.t, r.err)
		return r.channel
	case <-time.After(limit):
		p.t.Fatal(cmp.Or(p.last.Problem, "the peer of the page is not connected"))
	}
	return nil
}
