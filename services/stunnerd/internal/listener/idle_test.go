package listener

import (
	"bytes"
	"log/slog"
	"net"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// A silent client is disconnected, with a reason and a log line. A client that disconnects by itself has neither.
func TestSilentClientIsDisconnectedWithAReason(t *testing.T) {
	l, server := openSecure(t, config.Listener{Protocol: config.TURNTCP})
	var log bytes.Buffer
	l.opt.Meter.LogRefusals(slog.New(slog.NewTextHandler(&log, nil)))
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", (&net.TCPAddr{IP: server.IP, Port: server.Port}).String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	_ = dial().Close()
	silent := dial()
	defer silent.Close()
	awaitClosed(t, silent)
	gone(t, l, 0)
	l.drops(t, map[meter.Reason]uint64{meter.Idle: 1})
	if !bytes.Contains(log.Bytes(), []byte("level=INFO msg=\"refused or dropped\" reason=idle ")) {
		t.Errorf("log:\n%s", log.Bytes())
	}
}
