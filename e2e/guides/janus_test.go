package guides

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/guide"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// TestJanus: Janus starts with the configuration of the guide, and answers an offer with the address of its pod only,
// at a port that the route of the guide allows.
func TestJanus(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	p := newEnvironment(t, guide.Read(t, "janus"))
	const api = "http://" + podAddress + ":8088/janus"
	p.startJanus(api)
	answer := p.janusAnswer(api)
	candidates := 0
	for line := range strings.Lines(answer) {
		words := strings.Fields(line)
		if !strings.HasPrefix(line, "a=candidate:") || len(words) < 8 {
			continue
		}
		candidates++
		peer := net.JoinHostPort(words[4], words[5])
		if words[7] != "host" || words[4] != podAddress {
			t.Errorf("Janus announces %s, want the address of its pod only", line)
		}
		if out, err := p.stunnerctl(t.Context(), "can-reach", "janus/turn", peer); err != nil {
			t.Errorf("can-reach %s: %v\n%s", peer, err, out)
		}
	}
	if candidates == 0 {
		t.Errorf("Janus announces no candidate:\n%s", answer)
	}
	p.prints()
}

// startJanus starts Janus with the ConfigMap and the arguments of the guide. Only the folder is replaced.
func (p *environment) startJanus(api string) {
	p.Helper()
	path, err := exec.LookPath("janus")
	if err != nil {
		p.Fatal("janus is not installed: run `sudo apt-get install --yes janus`")
	}
	dir := p.TempDir()
	inPage := strings.NewReplacer("/etc/janus", dir)
	for _, object := range p.page.Objects(p) {
		if object["kind"] != "ConfigMap" {
			continue
		}
		var config corev1.ConfigMap
		harnesstest.NoError(p, guide.Convert(object, &config))
		for name, text := range config.Data {
			harnesstest.NoError(p, os.WriteFile(filepath.Join(dir, name), []byte(inPage.Replace(text)), 0o600))
		}
	}
	var args []string
	for _, arg := range p.args("janus") {
		args = append(args, inPage.Replace(arg))
	}
	p.inPod(harness.Command{Name: "janus", Path: path, Args: args, Logs: dir},
		harness.Answers(api+"/info", http.StatusOK))
}

// offer is an SDP offer without candidates.
var offer = strings.ReplaceAll(`v=0
o=- 1 1 IN IP4 127.0.0.1
s=-
t=0 0
m=audio 9 UDP/TLS/RTP/SAVPF 111
c=IN IP4 0.0.0.0
a=rtpmap:111 opus/48000/2
a=rtcp-mux
a=mid:0
a=sendrecv
a=setup:actpass
a=ice-ufrag:abcd
a=ice-pwd:abcdefghijklmnopqrstuvwx
a=fingerprint:sha-256 00:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:10:11:12:13:14:15:16:17:18:19:1A:1B:1C:1D:1E:1F
`, "\n", "\r\n")

// janusAnswer returns the answer of the plugin echotest to an offer.
func (p *environment) janusAnswer(api string) string {
	p.Helper()
	session := p.janusCreate(api, map[string]any{"janus": "create"})
	handle := p.janusCreate(session, map[string]any{"janus": "attach", "plugin": "janus.plugin.echotest"})
	p.janusRequest(http.MethodPost, handle, map[string]any{
		"janus": "message", "body": map[string]any{"audio": true}, "jsep": map[string]any{"type": "offer", "sdp": offer},
	})
	for {
		event := p.janusRequest(http.MethodGet, session, nil) // blocks until there is an event
		switch event.Kind {
		case "event":
			return event.JSEP.SDP
		case "error", "timeout":
			p.Fatalf("janus: %+v", event)
		}
	}
}

// janusCreate sends a request that creates an object, and returns the URL of the object.
func (p *environment) janusCreate(url string, request map[string]any) string {
	p.Helper()
	return fmt.Sprintf("%s/%d", url, p.janusRequest(http.MethodPost, url, request).Data.ID)
}

type janusResponse struct {
	Kind string `json:"janus"`
	Data struct{ ID uint64 }
	JSEP struct{ SDP string }
}

func (p *environment) janusRequest(method, url string, request map[string]any) (response janusResponse) {
	p.Helper()
	var body io.Reader
	if request != nil {
		request["transaction"] = "any"
		data, err := json.Marshal(request)
		harnesstest.NoError(p, err)
		body = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(p.Context(), 2*timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	harnesstest.NoError(p, err)
	res, err := http.DefaultClient.Do(req)
	harnesstest.NoError(p, err)
	defer res.Body.Close()
	harnesstest.NoError(p, json.NewDecoder(res.Body).Decode(&response))
	return response
}
