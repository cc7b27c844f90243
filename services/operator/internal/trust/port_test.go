package trust

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// port is an HTTP server that answers with its name.
func port(t *testing.T, wrap func(net.Listener, *Identity) net.Listener) (address string, who *Identity, a Authority) {
	t.Helper()
	now := time.Now()
	a = nextOf(t, Authority{}, now)
	who = &Identity{Names: []string{"discovery.example.net", "127.0.0.1"}}
	if err := who.Renew(a, now); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }),
		ReadHeaderTimeout: time.Second, ErrorLog: log.New(io.Discard, "", 0),
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(wrap(ln, who)) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return ln.Addr().String(), who, a
}

// ask sends a request and returns the response.
func ask(t *testing.T, conn net.Conn) string {
	t.Helper()
	defer func() { _ = conn.Close() }()
	body := strings.Repeat("x", 100_000)
	request, err := http.NewRequest(http.MethodPost, "http://discovery.example.net/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	go func() { _ = request.Write(conn) }()
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	if echo, _ := io.ReadAll(response.Body); response.StatusCode == http.StatusOK && string(echo) != body {
		t.Errorf("%d bytes came back, %d were sent", len(echo), len(body))
	}
	return response.Status
}

func plain(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func secured(t *testing.T, address string, config *tls.Config) (net.Conn, error) {
	t.Helper()
	conn := tls.Client(plain(t, address), config)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, conn.Handshake()
}

func TestOnePortSpeaksTLSAndPlainHTTP(t *testing.T) {
	address, who, a := port(t, func(ln net.Listener, who *Identity) net.Listener { return TLSOrPlain(ln, who.Server()) })
	silent := plain(t, address) // this client sends nothing and must not block others
	defer func() { _ = silent.Close() }()
	if got := ask(t, plain(t, address)); got != "200 OK" {
		t.Errorf("plain: %s", got)
	}
	conn, err := secured(t, address, &tls.Config{RootCAs: a.Pool(), ServerName: "discovery.example.net"})
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, conn); got != "200 OK" {
		t.Errorf("TLS: %s", got)
	}
	if conn, err = secured(t, address, who.Client()); err != nil {
		t.Fatalf("another replica: %v", err)
	} else if got := ask(t, conn); got != "200 OK" {
		t.Errorf("another replica: %s", got)
	}
	if _, err := secured(
		t, address, &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "discovery.example.net"},
	); err == nil {
		t.Error("a client that does not know the CA believes the certificate")
	}
	_ = silent.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := silent.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("who says nothing is not cut off: %v", err)
	}
}

// K-01: a replica verifies another replica by the current CA certificates, not by the CA certificates of its start.
func TestReplicasFollowTheAuthority(t *testing.T) {
	address, who, _ := port(
		t, func(ln net.Listener, who *Identity) net.Listener { return tls.NewListener(ln, who.Server()) },
	)
	other := &Identity{Names: who.Names}
	config := other.Client()
	if _, err := secured(t, address, config); err == nil || !strings.Contains(err.Error(), "no CA is known yet") {
		t.Errorf("before anything is known: %v", err)
	}
	now := time.Now()
	foreign := nextOf(t, Authority{}, now)
	if err := other.Renew(foreign, now); err != nil {
		t.Fatal(err)
	}
	if _, err := secured(t, address, config); err == nil {
		t.Error("a certificate of another CA is believed")
	}
	if err := who.Renew(foreign, now); err != nil {
		t.Fatal(err)
	}
	if _, err := secured(t, address, config); err != nil {
		t.Errorf("after both follow one authority: %v", err)
	}
	if got := ask(t, plain(t, address)); !strings.HasPrefix(got, "400") {
		t.Errorf("plain HTTP on a TLS port: %s", got)
	}
}

// clients that connect before the first certificate is issued wait some seconds for it: failing and reconnecting
// takes longer.
func TestHandshakesWaitForTheFirstCertificate(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		want  bool
	}{
		"soon": {certificateTime - time.Second, true},
		"late": {certificateTime + time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := nextOf(t, Authority{}, time.Now())
				replica := &Identity{Names: []string{"discovery.example.net"}}
				near, far := net.Pipe()
				defer near.Close()
				defer far.Close()
				server := tls.Server(far, replica.Server())
				go func() { _ = server.Handshake() }()
				done := make(chan error, 1)
				go func() {
					done <- tls.Client(near, &tls.Config{RootCAs: a.Pool(), ServerName: replica.Names[0]}).Handshake()
				}()
				time.Sleep(c.after)
				if err := replica.Renew(a, time.Now()); err != nil {
					t.Fatal(err)
				}
				if err := <-done; (err == nil) != c.want {
					t.Errorf("a certificate after %s: %v", c.after, err)
				}
			})
		})
	}
}
