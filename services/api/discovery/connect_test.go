package discovery

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

func TestTokenIsReadAgainForEachConnection(t *testing.T) {
	s, h := newScripted(t)
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "first\n")
	events := follow(t, open(t, h.URL, Options{ID: "media/a", Node: "worker 1", TokenFile: token}))
	r := <-s.dials
	if got := r.Header.Get("Authorization"); got != "Bearer first" {
		t.Errorf("authorization %q", got)
	}
	if got := r.URL.String(); got != "/api/v1/configs/media/a?node=worker+1&watch=true" {
		t.Errorf("request of %s", got)
	}
	write(t, token, "second")
	s.frames <- ""
	if got := (<-s.dials).Header.Get("Authorization"); got != "Bearer second" {
		t.Errorf("authorization %q", got)
	}
	for e := next(t, events); e.Err == nil; e = next(t, events) {
	}
}

// K-01: a client checks the certificate of the server against its CA.
func TestTLSIsCheckedAgainstTheCA(t *testing.T) {
	server := NewServer(ServerOptions{})
	a := sample("media/a", "r1")
	server.Publish(a)
	h := httptest.NewUnstartedServer(server)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.StartTLS()
	defer h.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})))
	foreign := filepath.Join(t.TempDir(), "foreign.crt")
	write(t, foreign, foreignCA(t))
	for _, origin := range []string{h.URL, strings.Replace(h.URL, "https", "wss", 1)} {
		if e := nextConfig(
			t, follow(t, open(t, origin, Options{ID: "media/a", CAFile: ca})),
		); e.Config.Revision() != a.Revision() {
			t.Errorf("%s: event %+v", origin, e)
		}
		named := func(name string) Event { // the certificate is for example.com, and *.example.com
			return next(t, follow(t, open(t, origin, Options{ID: "media/a", CAFile: ca, ServerName: name})))
		}
		if e := named("example.com"); e.Err != nil {
			t.Errorf("%s with its name: %v", origin, e.Err)
		}
		if e := named("example.net"); e.Err == nil || !strings.Contains(e.Err.Error(), "certificate") {
			t.Errorf("%s with another name: event %+v", origin, e)
		}
		for _, other := range []string{"", foreign} {
			e := next(t, follow(t, open(t, origin, Options{ID: "media/a", CAFile: other})))
			if e.Err == nil || !strings.Contains(e.Err.Error(), "certificate") {
				t.Errorf("%s with CA %q: event %+v", origin, other, e)
			}
		}
	}
}

// foreignCA returns a CA certificate that has not signed the certificate of the server.
func foreignCA(t *testing.T) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// K-04: the token is not sent to a redirect.
func TestTokenDoesNotFollowRedirects(t *testing.T) {
	thief, h := newScripted(t)
	redirect := httptest.NewServer(http.RedirectHandler(h.URL, http.StatusTemporaryRedirect))
	defer redirect.Close()
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "secret-token")
	source := open(t, redirect.URL, Options{ID: "media/a", TokenFile: token})
	if _, err := source.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("load: %v", err)
	}
	if e := next(t, follow(t, source)); e.Err == nil || strings.Contains(e.Err.Error(), "secret-token") {
		t.Errorf("watch: %+v", e)
	}
	if len(thief.dials) > 0 {
		t.Error("the redirect was followed")
	}
}

// the delay between two connections grows from 0.2 s to 10 s, with jitter, and is reset after a long connection.
func TestBackoffGrowsToTenSecondsAndStartsAfresh(t *testing.T) {
	var b backoff
	for _, want := range []time.Duration{200, 400, 800, 1600, 3200, 6400, 10000, 10000} {
		want *= time.Millisecond
		if got := b.next(0); got < want/2 || got >= want {
			t.Errorf("delay %s, want between %s and %s", got, want/2, want)
		}
	}
	if got := b.next(time.Minute); got >= firstDelay {
		t.Errorf("after a connection that held: %s", got)
	}
}

// a handshake without an answer times out.
func TestHandshakeWithoutAnswerTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := open(t, "http://silent", Options{ID: "media/a"}).(*client)
		dials := make(chan net.Conn, 10)
		source.dial = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			dials <- far
			return near, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		events := source.Watch(ctx)
		far := <-dials
		go func() { // reads and never answers
			buffer := make([]byte, 1024)
			for {
				if _, err := far.Read(buffer); err != nil {
					return
				}
			}
		}()
		e := <-events
		if e.Err == nil || time.Since(start) != dialTimeout {
			t.Errorf("a handshake without answer: %v after %s", e.Err, time.Since(start))
		}
		cancel()
		for range events {
		}
		_ = far.Close()
	})
}

// a stream is closed after eight seconds of silence.
func TestContractSilentStreamIsClosedAfterEightSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		listener := &pipeListener{conns: make(chan net.Conn, 1), done: make(chan struct{})}
		listener.conns <- far
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := websocket.Accept(
				w, r, &websocket.AcceptOptions{OnPingReceived: func(context.Context, []byte) bool { return false }},
			)
			if err != nil {
				t.Error(err)
				return
			}
			<-conn.CloseRead(context.Background()).Done()
		})}
		go func() { _ = server.Serve(listener) }()
		source := open(t, "http://silent", Options{ID: "media/a"}).(*client)
		source.dial = func(context.Context, string, string) (net.Conn, error) {
			if near == nil {
				return nil, errors.New("gone")
			}
			conn := near
			near = nil
			return conn, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		events := source.Watch(ctx)
		if e := <-events; !e.Connected {
			t.Fatalf("event %+v", e)
		}
		e := <-events
		if !errors.Is(e.Err, errSilent) || time.Since(start) != 8*time.Second {
			t.Errorf("event %+v after %s", e, time.Since(start))
		}
		cancel()
		for range events {
		}
		_ = server.Close()
		synctest.Wait()
	})
}

type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestOpen(t *testing.T) {
	for origin, want := range map[string]string{
		"http://cds:13478":                          "http://cds:13478/api/v1/configs/media/a",
		"ws://cds:13478/":                           "http://cds:13478/api/v1/configs/media/a",
		"https://cds":                               "https://cds/api/v1/configs/media/a",
		"wss://cds:13478":                           "https://cds:13478/api/v1/configs/media/a",
		"http://cds/api/v1/configs/media/a":         "http://cds/api/v1/configs/media/a",
		"http://cds/behind":                         "http://cds/behind/api/v1/configs/media/a",
		"http://cds/behind/api/v1/configs/media/a/": "http://cds/behind/api/v1/configs/media/a",
		"10.0.0.1:13478":                            "http://10.0.0.1:13478/api/v1/configs/media/a",
		"[2001:db8::1]:13478":                       "http://[2001:db8::1]:13478/api/v1/configs/media/a",
		":13478":                                    "http://127.0.0.1:13478/api/v1/configs/media/a",
		"conf/stunnerd.conf":                        "conf/stunnerd.conf",
		"file:///etc/stunnerd.conf":                 "/etc/stunnerd.conf",
		"file://stunnerd.conf":                      "stunnerd.conf",
	} {
		if got := open(t, origin, Options{ID: "media/a"}).String(); got != want {
			t.Errorf("%s opens %s, want %s", origin, got, want)
		}
	}
	for origin, problem := range map[string]string{
		"":                                  "no origin",
		"k8s":                               "not supported",
		"ftp://cds":                         "unknown scheme",
		"http://user:hunter2@cds":           "no credentials in URLs",
		"http://":                           "unreadable",
		"http://cds:x/":                     "unreadable",
		"http://cds/api/v1/configs/media/b": `"media/b"`,
	} {
		_, err := Open(origin, Options{ID: "media/a"})
		if err == nil || !strings.Contains(err.Error(), problem) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("open %q: %v", origin, err)
		}
	}
}
