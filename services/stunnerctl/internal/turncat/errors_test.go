package turncat

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// foreign matches texts of libraries and of the kernel, which name no cause and no remedy.
var foreign = regexp.MustCompile(`retransmi|turn: |dtls|ransaction|i/o timeout|read udp|read tcp|dial |connection refused|` +
	`x509|tls:|error response|attribute|EOF|closed network`)

// TestErrorsHaveTextsForUsers: for any fault of a server, the error names the attempt and the address, its meaning and the
// remedy. It quotes no error of a library.
func TestErrorsHaveTextsForUsers(t *testing.T) {
	silent := udpServer(t, nil)
	for name, row := range map[string]struct {
		endpoint Endpoint
		want     string
	}{
		"nothing answers": {silent, "no answer to the TURN request Allocate at " + silent.at() + " after "},
		"no UDP server":   {Endpoint{Protocol: config.TURNUDP, Port: freePort(t, "udp")}, "refuses the connection: nothing listens there"},
		"no TCP server":   {Endpoint{Protocol: config.TURNTCP, Port: freePort(t, "tcp")}, "refuses the connection: nothing listens there"},
		"no such name":    {Endpoint{Host: "name.invalid", Protocol: config.TURNUDP, Port: 1}, "the host name name.invalid is not resolved"},
		"no DTLS server":  {secured(silent, config.TURNDTLS), "no answer from 127.0.0.1:"},
		"TLS of another protocol": {Endpoint{Protocol: config.TURNTLS, Port: tcpServer(t, "HTTP/1.1 400 Bad Request\r\n\r\n")},
			"does not complete the handshake"},
		"a server of another protocol": {Endpoint{Protocol: config.TURNTCP, Port: tcpServer(t, "\xff\xff\xff\xff")},
			"another server has the port"},
		"a server that closes": {Endpoint{Protocol: config.TURNTCP, Port: tcpServer(t, "")},
			"has closed the connection"},
		"TLS of an unknown issuer":  {Endpoint{Protocol: config.TURNTLS, Port: tlsServer(t, time.Hour)}, "name the issuer with --turn-ca-file"},
		"DTLS of an unknown issuer": {Endpoint{Protocol: config.TURNDTLS, Port: dtlsServer(t)}, "name the issuer with --turn-ca-file"},
		"a redirection":             {udpServer(t, answerWith(stun.ClassErrorResponse, stun.CodeTryAlternate)), "error 300: the server refuses"},
		"a full server":             {udpServer(t, answerWith(stun.ClassErrorResponse, stun.CodeInsufficientCapacity)), "error 508: the server is full"},
		"an answer without a relayed address": {udpServer(t, answerWith(stun.ClassSuccessResponse, 0)),
			"the answer is not that of a TURN server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := row.endpoint
			if e.Host == "" {
				e.Host = "127.0.0.1"
			}
			e.Credential = credential.Credential{Username: "ada", Password: "pw"}
			_, err := NewRelay(t.Context(), e, AnyFamily)
			if err == nil {
				t.Fatal("it has a relay")
			}
			if text := err.Error(); !strings.Contains(text, row.want) || foreign.MatchString(text) ||
				!strings.Contains(text, e.Host) {
				t.Errorf("%q, want %q", text, row.want)
			}
		})
	}
}

// TestPermissionErrorsHaveTextsForUsers: an error of a request for a permission names the attempt and the remedy, and quotes no
// error of a library.
func TestPermissionErrorsHaveTextsForUsers(t *testing.T) {
	server, e := serve(t, func(c net.PacketConn) net.PacketConn { return c })
	r, err := NewRelay(t.Context(), e, AnyFamily)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	err = r.Permit(r.Address())
	if err == nil || foreign.MatchString(err.Error()) || !strings.Contains(err.Error(), "CreatePermission at "+e.at()) &&
		!strings.Contains(err.Error(), "CreatePermission") {
		t.Errorf("%v", err)
	}
}

func secured(e Endpoint, p config.Protocol) Endpoint {
	e.Protocol = p
	return e
}

// udpServer returns a server that answers each datagram with the result of a function, or nothing.
func udpServer(t *testing.T, answer func(request *stun.Message) *stun.Message) Endpoint {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			request := &stun.Message{Raw: buf[:n]}
			if answer != nil && request.Decode() == nil {
				_, _ = conn.WriteTo(answer(request).Raw, from)
			}
		}
	}()
	return Endpoint{Host: "127.0.0.1", Port: conn.LocalAddr().(*net.UDPAddr).Port, Protocol: config.TURNUDP}
}

// answerWith requests a credential, and then answers with a class and a code.
func answerWith(class stun.MessageClass, code stun.ErrorCode) func(*stun.Message) *stun.Message {
	return func(request *stun.Message) *stun.Message {
		if !request.Contains(stun.AttrUsername) {
			return stun.MustBuild(request, stun.NewType(request.Type.Method, stun.ClassErrorResponse), stun.CodeUnauthorized,
				stun.NewRealm("example.org"), stun.NewNonce("nonce"))
		}
		setters := []stun.Setter{request, stun.NewType(request.Type.Method, class)}
		if code != 0 {
			setters = append(setters, code)
		}
		return stun.MustBuild(setters...)
	}
}

// tcpServer returns the port of a server. The server sends a text, or ends each connection if the text is empty.
func tcpServer(t *testing.T, text string) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go serveAll(l, func(c net.Conn) {
		if text == "" {
			_ = c.Close()
		}
		_, _ = c.Write([]byte(text))
	})
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func serveAll(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			serve(c)
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}()
	}
}

func selfSigned(t *testing.T, valid time.Duration) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

func tlsServer(t *testing.T, valid time.Duration) int {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{selfSigned(t, valid)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go serveAll(l, func(c net.Conn) {})
	return l.Addr().(*net.TCPAddr).Port
}

func dtlsServer(t *testing.T) int {
	t.Helper()
	l, err := dtls.ListenWithOptions("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, dtls.WithCertificates(selfSigned(t, time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go serveAll(l, func(c net.Conn) {})
	return l.Addr().(*net.UDPAddr).Port
}

// freePort returns a port at which nothing listens.
func freePort(t *testing.T, network string) int {
	t.Helper()
	var at string
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		at = c.LocalAddr().String()
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		at = l.Addr().String()
	}
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
