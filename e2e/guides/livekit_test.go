package guides

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/guide"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// liveKitPeer is the address that LiveKit announces with the configuration of the guide.
const liveKitPeer = podAddress + ":7882"

// TestLiveKit: two participants in Chromium exchange video through a LiveKit server that has only the address of its
// pod, with the manifests and the code of the guide. They use credentials of LiveKit over UDP, the same over TCP while
// UDP is blocked, and credentials of the auth service. The checks of the guide print the documented output.
func TestLiveKit(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	p := newEnvironment(t, guide.Read(t, "livekit"))
	key, secret := p.startLiveKit()
	code := p.page.Of("js")
	if len(code) != 2 {
		t.Fatalf("guide %s has %d blocks of js, want 2: with credentials of LiveKit and of the auth service", p.page.Name, len(code))
	}
	over := func(t *testing.T, code, transport string) {
		q := *p
		q.T = t
		page := q.browse(code, key, secret)
		// The browser may nominate a TCP relay first, and change to UDP when its check has succeeded.
		r := page.Reports("video arrives over "+transport, func(r chromium.Report) bool {
			return r.Verdict == "failed" || r.Received >= 50 && r.Pair.Local.Relay == transport
		})
		if r.Verdict == "failed" || r.Pair.Local.Type != "relay" || r.Pair.Local.Relay != transport {
			t.Errorf("%+v, want a relay over %s; errors %q", r, transport, page.Trouble())
		}
		if r.Sentence != "peer "+liveKitPeer {
			t.Errorf("the peer is %q, want %s", r.Sentence, liveKitPeer)
		}
		if t.Name() == "TestLiveKit/LiveKit" {
			q.prints()
		}
	}
	t.Run("LiveKit", func(t *testing.T) { over(t, code[0], "udp") })
	t.Run("auth service", func(t *testing.T) { over(t, code[1], "udp") })
	t.Run("UDP is blocked", func(t *testing.T) {
		p.clients.Run(t, "nft add table inet firewall")
		p.clients.Run(t, "nft add chain inet firewall output { type filter hook output priority filter ; }")
		p.clients.Run(t, "nft add rule inet firewall output ip daddr "+publicAddress+" meta l4proto udp drop")
		over(t, code[0], "tcp")
	})
}

// startLiveKit starts LiveKit with the configuration of the guide. Only the host name of the Gateway is replaced. It
// returns the key and the secret of the API.
func (p *environment) startLiveKit() (key, secret string) {
	p.Helper()
	text := p.secret("livekit-config", "livekit.yaml")
	if !strings.Contains(text, "turn.example.org") {
		p.Fatal("the configuration of LiveKit does not name turn.example.org")
	}
	text = strings.ReplaceAll(text, "turn.example.org", publicAddress)
	var config struct{ Keys map[string]string }
	harnesstest.NoError(p, yaml.Unmarshal([]byte(text), &config))
	dir := p.TempDir()
	file := filepath.Join(dir, "livekit.yaml")
	harnesstest.NoError(p, os.WriteFile(file, []byte(text), 0o600))
	p.inPod(harness.Command{
		Name: "livekit", Path: published(p.T, "livekit", "server"), Args: []string{"--config", file}, Logs: dir,
	}, harness.Answers("http://"+podAddress+":7880/", http.StatusOK))
	for key, secret = range config.Keys {
		return key, secret
	}
	p.Fatal("the configuration of LiveKit has no key of the API")
	return "", ""
}

// browse opens a page with the code of a guide in a browser of the clients. Like an Ingress, its web server forwards
// signalling to LiveKit and requests for credentials to the auth service.
func (p *environment) browse(code, key, secret string) *chromium.Page {
	p.Helper()
	imports := regexp.MustCompile(`(?m)^import .*\n`)
	html := harnesstest.Read(p, "e2e/guides/livekit.html")
	html = strings.Replace(html, `<script type="module">`, `<script type="module">`+strings.Join(imports.FindAllString(code, -1), ""), 1)
	body := strings.ReplaceAll(imports.ReplaceAllString(code, ""), `'wss://livekit.example.org'`, "`ws://${location.host}`")
	html = strings.Replace(html, "/* GUIDE */", body, 1)

	tokens, err := json.Marshal([]string{liveKitToken(p.T, key, secret, "ada"), liveKitToken(p.T, key, secret, "bob")})
	harnesstest.NoError(p, err)
	client := filepath.Join(harnesstest.Root(p), "e2e/browser/node_modules/livekit-client/dist/livekit-client.esm.mjs")
	liveKit := proxy("http://" + podAddress + ":7880")
	site := p.serve(map[string]http.Handler{
		"/{$}": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, html) }),
		"/livekit-client.esm.mjs": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/javascript")
			http.ServeFile(w, r, client)
		}),
		"/rtc": liveKit, "/rtc/": liveKit, "/v1/ice-servers": proxy(p.authURL),
	})
	start := func(c *exec.Cmd) (err error) {
		p.clients.Do(func() { err = c.Start() })
		return err
	}
	return chromium.OpenBy(p.T, start, site+"/#"+url.PathEscape(string(tokens)))
}

// liveKitToken returns an access token of LiveKit, which admits a participant to the room "test".
func liveKitToken(t *testing.T, key, secret, identity string) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{
		"iss": key, "sub": identity, "nbf": time.Now().Add(-time.Minute).Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"video": map[string]any{"room": "test", "roomJoin": true},
	})
	harnesstest.NoError(t, err)
	text := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(claims)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + encode(mac.Sum(nil))
}
