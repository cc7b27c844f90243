package scenario

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/coder/websocket"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// invalidFrames returns invalid frames of config discovery.
func invalidFrames() []string {
	return []string{
		"hello",
		"",
		"{",
		"null",
		"[]",
		`{"version":"v9"}`,
		`{"version":"v1","admin":{"name":7}}`,
		`{"version":"v1","listeners":"all"}`,
		strings.Repeat("[", 10_000),
		"\xff\xfe\x00",
	}
}

// serveDiscovery serves a discovery endpoint that sends invalid frames, then the config in a file, then invalid frames
// again.
func serveDiscovery(s *stage, ts *testscript.TestScript, args []string) error {
	listener, err := net.Listen("tcp", bed.Loopback+":0")
	if err != nil {
		return err
	}
	// A client keeps the last eight frames that it has not read, so the config must be among these.
	frames := append(append(invalidFrames(), ts.ReadFile(args[1])), invalidFrames()[:7]...)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		ctx := conn.CloseRead(r.Context())
		for _, frame := range frames {
			if conn.Write(ctx, kind(frame), []byte(frame)) != nil {
				return
			}
		}
		<-ctx.Done()
	})}
	context.AfterFunc(s.ctx, func() { server.Close() })
	go server.Serve(listener) // returns when the scenario ends
	ts.Setenv(args[0], fmt.Sprintf("ws://%s", listener.Addr()))
	return nil
}

// kind returns the type of a WebSocket message: text only for valid UTF-8, because other text would violate the
// WebSocket protocol.
func kind(frame string) websocket.MessageType {
	if strings.ToValidUTF8(frame, "") != frame {
		return websocket.MessageBinary
	}
	return websocket.MessageText
}
