package telemetry_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is a listener of in-memory connections, for tests in virtual time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- far
	return near
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// serving runs test against Serve in virtual time and returns the error of Serve.
func serving(t *testing.T, h http.HandlerFunc, test func(t *testing.T, p *pipes, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p, ended := newPipes(), make(chan error)
		go func() { ended <- telemetry.Serve(ctx, p, h) }()
		test(t, p, stop)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

func request(t *testing.T, c net.Conn, text string) *http.Response {
	t.Helper()
	go func() { _, _ = io.WriteString(c, text) }()
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// Only errors of this process are logged, and no errors of clients.
func TestServeLogsItsOwnErrors(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	defer certificate.Close()
	ctx, stop := context.WithCancel(t.Context())
	ln, err := tls.Listen("tcp", "127.0.0.1:0", certificate.TLS)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		ended <- telemetry.Serve(
			ctx, ln, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a fault of ours") }),
		)
	}()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(client, "GET / HTTP/1.0\r\n\r\n")
	_, _ = io.ReadAll(client) // the server has processed the request when it answers or closes the connection
	_ = client.Close()
	if _, err := certificate.Client().Get("https://" + ln.Addr().String()); err == nil {
		t.Error("a panic is answered")
	}
	certificate.Client().CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := logged.String(); !strings.Contains(text, "a fault of ours") || strings.Contains(text, "handshake") {
		t.Errorf("log:\n%s", text)
	}
}

// J-14: beyond the limit, connections without a complete request are closed first.
func TestServeBoundsItsConnections(t *testing.T) {
	serving(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, p *pipes, _ func()) {
		good := p.dial()
		request(t, good, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		var slow []net.Conn
		for i := range 5000 {
			c := p.dial()
			if i%2 == 0 {
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n") // half of the clients have sent a part of a request
			}
			slow = append(slow, c)
			if i == 900 {
				request(t, good, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") // the connection stays open, because it sends requests
			}
		}
		began := time.Now()
		request(t, p.dial(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if took := time.Since(began); took != 0 {
			t.Errorf("a good client waits %s", took)
		}
		synctest.Wait()
		var open int
		for _, c := range slow {
			_ = c.SetReadDeadline(time.Now())
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				open++
			}
			_ = c.Close()
		}
		if open != 999 {
			t.Errorf("%d slow clients are connected beside the good one, want 999", open)
		}
		_ = good.Close()
	})
}

// J-14, T-20, G-03: a client that does not send its request in time is cut off, after the same time everywhere.
func TestServeDisconnectsSlowClients(t *testing.T) {
	ok := func(http.ResponseWriter, *http.Request) {}
	for name, c := range map[string]struct {
		sent string
		want time.Duration
	}{
		"nothing sent":     {"", 5 * time.Second},
		"half a header":    {"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ", 5 * time.Second},
		"idle afterwards":  {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 60 * time.Second},
		"half of the body": {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.HandlerFunc(ok)
			if strings.HasPrefix(c.sent, "POST") {
				h = func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) }
			}
			serving(t, h, func(t *testing.T, p *pipes, _ func()) {
				conn, start := p.dial(), time.Now()
				go func() { _, _ = io.WriteString(conn, c.sent) }()
				if _, err := io.Copy(io.Discard, conn); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took < c.want || took > c.want+time.Second {
					t.Errorf("cut off after %s, want %s", took, c.want)
				}
				_ = conn.Close()
			})
		})
	}
}

// J-14: headers of more than 16 KiB get 431.
func TestServeBoundsHeaders(t *testing.T) {
	serving(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, p *pipes, _ func()) {
		for size, want := range map[int]int{15 << 10: http.StatusOK, 17 << 10: http.StatusRequestHeaderFieldsTooLarge} {
			conn := p.dial()
			response := request(t, conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Long: "+strings.Repeat("x", size)+"\r\n\r\n")
			if response.StatusCode != want {
				t.Errorf("header of %d bytes: %s, want %d", size, response.Status, want)
			}
			_ = conn.Close()
		}
	})
}

func TestServeWaitsForRunningRequests(t *testing.T) {
	arrived := make(chan struct{})
	h := func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		time.Sleep(3 * time.Second)
		if r.Context().Err() != nil {
			t.Error("the request was cancelled")
		}
		_, _ = io.WriteString(w, "done")
	}
	serving(t, h, func(t *testing.T, p *pipes, stop func()) {
		conn := p.dial()
		go func() { <-arrived; stop() }()
		response := request(t, conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != "done" {
			t.Errorf("answer %q, %v", body, err)
		}
		_ = conn.Close()
	})
}

// Shutdown does not wait for connections without a complete request, to which net/http would not answer.
func TestServeDoesNotWaitForConnectionsWithoutARequest(t *testing.T) {
	serving(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, p *pipes, stop func()) {
		silent, half := p.dial(), p.dial()
		_, _ = io.WriteString(half, "GET / HTTP/1.1\r\n")
		synctest.Wait()
		began := time.Now()
		stop()
		for _, c := range []net.Conn{silent, half} {
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("they are waited for for %s", took)
		}
	})
}

func TestServeReportsAListenerThatBreaks(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if err := telemetry.Serve(t.Context(), ln, http.NotFoundHandler()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v", err)
	}
}
