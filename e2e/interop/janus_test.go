package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// J-10: Janus gets TURN credentials from the auth service, by GET and by POST, and gets a relay with them.
func TestJanus(t *testing.T) {
	stack := harnesstest.Quickstart(t, "")
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		t.Run(method, func(t *testing.T) {
			answer := startJanus(t, stack.AuthURL()+"/", method).answer()
			var kinds []string
			for line := range strings.Lines(answer) {
				if _, kind, ok := strings.Cut(line, " typ "); ok {
					kinds = append(kinds, strings.Fields(kind)[0])
				}
			}
			if len(kinds) == 0 || slices.ContainsFunc(kinds, func(kind string) bool { return kind != "relay" }) {
				t.Errorf("candidates of the answer are %q, want relays only:\n%s", kinds, answer)
			}
		})
	}
}

// janus is a running Janus server.
type janus struct {
	t   *testing.T
	url string
}

// janusConfig enables only one plugin and HTTP.
const janusConfig = `general: {
	configs_folder = "%[1]s"
	events_folder = "%[1]s"
	loggers_folder = "%[1]s"
}
nat: {
	turn_rest_api = "%[2]s"
	turn_rest_api_key = "not-looked-at"
	turn_rest_api_method = "%[3]s"
	allow_force_relay = true
}
plugins: { disable = "libjanus_audiobridge.so,libjanus_duktape.so,libjanus_lua.so,libjanus_nosip.so,libjanus_recordplay.so,libjanus_sip.so,` +
	`libjanus_streaming.so,libjanus_textroom.so,libjanus_videocall.so,libjanus_videoroom.so,libjanus_voicemail.so" }
transports: { disable = "libjanus_mqtt.so,libjanus_nanomsg.so,libjanus_pfunix.so,libjanus_rabbitmq.so,libjanus_websockets.so" }
`

const janusHTTP = `general: { http = true, https = false, ip = "%s", port = %d }
admin: { admin_http = false }
`

func startJanus(t *testing.T, service, method string) janus {
	t.Helper()
	dir, port := t.TempDir(), harnesstest.Port(t)
	for name, text := range map[string]string{
		"janus.jcfg":                fmt.Sprintf(janusConfig, dir, service, method),
		"janus.transport.http.jcfg": fmt.Sprintf(janusHTTP, harness.Loopback, port),
	} {
		harnesstest.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	url := fmt.Sprintf("http://%s:%d/janus", harness.Loopback, port)
	harnesstest.Start(t, harness.Command{
		Name: "janus", Path: installed(t, "janus", "janus"), Logs: dir,
		Args: []string{"-F", dir, "-C", filepath.Join(dir, "janus.jcfg")},
	}, harness.Answers(url+"/info", http.StatusOK))
	return janus{t, url}
}

// janusOffer is an SDP offer without candidates.
var janusOffer = strings.ReplaceAll(`v=0
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

// answer returns the echo plugin's answer to the offer.
func (j janus) answer() string {
	j.t.Helper()
	session := j.post("", map[string]any{"janus": "create"})
	handle := session + j.post(
		session, map[string]any{"janus": "attach", "plugin": "janus.plugin.echotest", "opaque_id": "carol"},
	)
	j.post(handle, map[string]any{
		"janus": "message", "body": map[string]any{"audio": true},
		"jsep": map[string]any{"type": "offer", "sdp": janusOffer, "force_relay": true},
	})
	for {
		var event struct {
			Kind string `json:"janus"`
			JSEP struct{ SDP string }
		}
		j.do(http.MethodGet, session, nil, &event)
		switch event.Kind {
		case "event":
			return event.JSEP.SDP
		case "error", "timeout":
			j.t.Fatalf("janus: %+v", event)
		}
	}
}

// post sends a request that creates an object, and returns the path of the object.
func (j janus) post(path string, request map[string]any) string {
	j.t.Helper()
	request["transaction"] = "any"
	body, err := json.Marshal(request)
	harnesstest.NoError(j.t, err)
	var answer struct {
		Janus string
		Data  struct{ ID uint64 }
		Error struct{ Reason string }
	}
	j.do(http.MethodPost, path, bytes.NewReader(body), &answer)
	if answer.Janus != "success" && answer.Janus != "ack" {
		j.t.Fatalf("%s: janus: %+v", request["janus"], answer)
	}
	return fmt.Sprintf("/%d", answer.Data.ID)
}

// do sends a request. A request for events blocks until there is one.
func (j janus) do(method, path string, body io.Reader, answer any) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), 40*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, j.url+path, body)
	harnesstest.NoError(j.t, err)
	res, err := http.DefaultClient.Do(req)
	harnesstest.NoError(j.t, err)
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(answer); err != nil {
		j.t.Fatalf("%s %s: %v", method, path, err)
	}
}
