package forward

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// Ports of Janus in the network of peers, on the loopback interface.
const (
	janusPort  = 8088
	streamPort = 5002
)

// janusConfig has the HTTP interface, and a stream of audio that the test sends.
var janusConfig = map[string]string{
	"janus.jcfg": `general: {
	configs_folder = "%[1]s"
	events_folder = "%[1]s"
	loggers_folder = "%[1]s"
}
nat: { ice_enforce_list = "%[2]s" }
plugins: { disable = "libjanus_audiobridge.so,libjanus_duktape.so,libjanus_lua.so,libjanus_nosip.so,` +
		`libjanus_recordplay.so,libjanus_sip.so,libjanus_textroom.so,libjanus_videocall.so,libjanus_videoroom.so,` +
		`libjanus_voicemail.so" }
transports: { disable = "libjanus_mqtt.so,libjanus_nanomsg.so,libjanus_pfunix.so,libjanus_rabbitmq.so,` +
		`libjanus_websockets.so" }
`,
	"janus.transport.http.jcfg": `general: { http = true, https = false, ip = "127.0.0.1", port = 8088 }
admin: { admin_http = false }
`,
	"janus.plugin.streaming.jcfg": `stream: {
	type = "rtp"
	id = 1
	media = ( { type = "audio", mid = "a", label = "audio", port = 5002, pt = 111, codec = "opus" } )
}
`,
}

// janusServer is a Janus server in the network of peers.
type janusServer struct {
	t      *testing.T
	client http.Client
}

// startJanus starts Janus, and a stream of RTP packets to it.
func (g *gateway) startJanus() *janusServer {
	t := g.t
	t.Helper()
	path, err := exec.LookPath("janus")
	if err != nil {
		t.Fatal("janus is not installed: run `sudo apt-get install --yes janus`")
	}
	dir := t.TempDir()
	for name, text := range janusConfig {
		if name == "janus.jcfg" {
			text = fmt.Sprintf(text, dir, g.net.Peer(0)[0])
		}
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	j := &janusServer{t: t}
	j.client.Transport = &http.Transport{DialContext: g.net.Peers.Dial}
	t.Cleanup(j.client.CloseIdleConnections)
	g.net.Peers.Do(func() {
		harnesstest.Start(t, harness.Command{
			Name: "janus", Path: path, Args: []string{"-F", dir, "-C", filepath.Join(dir, "janus.jcfg")}, Logs: dir,
		}, func(context.Context) error { return nil })
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	must(t, harness.Until(ctx, func(ctx context.Context) error {
		var info struct{ Name string }
		return j.do(ctx, http.MethodGet, "/info", nil, &info)
	}))
	stream, err := g.net.Peers.Dial(ctx, "udp", fmt.Sprintf("%s:%d", harness.Loopback, streamPort))
	must(t, err)
	t.Cleanup(func() { stream.Close() })
	go sendAudio(stream)
	return j
}

// sendAudio sends an RTP packet (RFC 3550 §5.1) with silence in Opus every 20 ms until the connection is closed.
func sendAudio(to net.Conn) {
	tick := time.NewTicker(voice)
	defer tick.Stop()
	packet := []byte{0x80, 111, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0xF8, 0xFF, 0xFE}
	for number := uint32(0); ; number++ {
		binary.BigEndian.PutUint16(packet[2:], uint16(number))
		binary.BigEndian.PutUint32(packet[4:], 960*number)
		if _, err := to.Write(packet); errors.Is(err, net.ErrClosed) {
			return
		}
		<-tick.C
	}
}

// call makes a call between the page and Janus. If the page offers, Janus returns its video; otherwise Janus sends the
// stream.
func (j *janusServer) call(p *page, pageOffers bool, relays []harness.ICEServer) {
	j.t.Helper()
	session := "/" + j.create("", map[string]any{"janus": "create"})
	plugin := map[bool]string{true: "janus.plugin.echotest", false: "janus.plugin.streaming"}[pageOffers]
	handle := session + "/" + j.create(session, map[string]any{"janus": "attach", "plugin": plugin})
	o := order{Peer: "test", Media: map[bool]string{true: "video", false: "audio"}[pageOffers], ICEServers: relays}
	ctx := j.t.Context()
	if pageOffers {
		o.exchange = func(_ context.Context, own description) (*description, error) {
			return j.message(ctx, session, handle, map[string]any{"video": true}, &own)
		}
	} else {
		var err error
		o.Description, err = j.message(ctx, session, handle, map[string]any{"request": "watch", "id": 1}, nil)
		must(j.t, err)
		o.exchange = func(_ context.Context, own description) (*description, error) {
			_, err := j.message(ctx, session, handle, map[string]any{"request": "start"}, &own)
			return nil, err
		}
	}
	p.call(o)
	go j.keepAlive(ctx, session)
}

// keepAlive requests events of a session until the test ends, because Janus ends a session without requests.
func (j *janusServer) keepAlive(ctx context.Context, session string) {
	for ctx.Err() == nil {
		var event json.RawMessage
		if j.do(ctx, http.MethodGet, session, nil, &event) != nil {
			return
		}
	}
}

// create sends a request that creates an object, and returns the id of the object.
func (j *janusServer) create(path string, request map[string]any) string {
	j.t.Helper()
	request["transaction"] = "any"
	var created struct{ Data struct{ ID uint64 } }
	must(j.t, j.do(j.t.Context(), http.MethodPost, path, request, &created))
	return fmt.Sprint(created.Data.ID)
}

// message sends a message to a plugin, and returns the description in the event that answers it, or nil if it has none.
func (j *janusServer) message(
	ctx context.Context, session, handle string, body map[string]any, own *description,
) (*description, error) {
	request := map[string]any{"janus": "message", "transaction": "any", "body": body}
	if own != nil {
		request["jsep"] = own
	}
	var accepted json.RawMessage
	if err := j.do(ctx, http.MethodPost, handle, request, &accepted); err != nil {
		return nil, err
	}
	for {
		var event struct {
			Janus      string
			JSEP       *description
			PluginData struct {
				Data struct {
					Error string
				}
			}
		}
		switch err := j.do(ctx, http.MethodGet, session, nil, &event); {
		case err != nil:
			return nil, err
		case event.PluginData.Data.Error != "":
			return nil, fmt.Errorf("janus: %s", event.PluginData.Data.Error)
		case event.Janus == "event":
			return event.JSEP, nil
		}
	}
}

// do sends a request. A request for events blocks until there is one.
func (j *janusServer) do(ctx context.Context, method, path string, request map[string]any, answer any) error {
	var body io.Reader
	if request != nil {
		text, err := json.Marshal(request)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	url := fmt.Sprintf("http://%s:%d/janus%s", harness.Loopback, janusPort, path)
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	res, err := j.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	var failed struct {
		Error *struct{ Reason string }
	}
	if err := json.Unmarshal(text, &failed); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if failed.Error != nil {
		return fmt.Errorf("%s %s: %s", method, path, failed.Error.Reason)
	}
	return json.Unmarshal(text, answer)
}
