package turncat

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// remedies explain STUN error codes (RFC 8489 §14.8, RFC 8656 §19).
var remedies = map[stun.ErrorCode]string{
	stun.CodeUnauthorized:           "the credential is wrong or expired: check user, password and the clocks",
	stun.CodeAllocMismatch:          "the server has no such allocation: it has restarted, or it has expired",
	stun.CodeAddrFamilyNotSupported: "the server has no relay address of the family of the peer",
	stun.CodeUnsupportedTransProto:  "the server does not relay UDP",
	stun.CodeAllocQuotaReached:      "the user has reached the quota of allocations",
	stun.CodeInsufficientCapacity:   "the server is full or draining",
}

// ErrForbidden is the error response 403 to a request for a permission.
var ErrForbidden = errors.New("error 403: no route of the gateway allows the peer: see stunnerctl can-reach")

// next names the command with which a user finds the faulty part of the path.
const next = "next: stunnerctl why GATEWAY, which tests each part of the way"

// at returns the transport address of the server, as in 192.0.2.10:3478/udp.
func (e Endpoint) at() string {
	return net.JoinHostPort(e.Host, portText(e.Port)) + "/" + e.Protocol.Network()
}

// explain returns the error of a request that began at a time: the code of the last error response with its remedy, the
// end of the connection, or that there was no answer. The texts of the client library name transactions only, so they
// are not used.
func (a *allocation) explain(request string, begun time.Time) error {
	code := stun.ErrorCode(a.link.refusal.Load())
	switch remedy := remedies[code]; {
	case code == stun.CodeForbidden:
		return fmt.Errorf("%s at %s: %w", request, a.at, ErrForbidden)
	case remedy != "":
		return fmt.Errorf("%s at %s: error %d: %s", request, a.at, code, remedy)
	case code != 0:
		return fmt.Errorf("%s at %s: error %d: the server refuses the request; %s", request, a.at, code, next)
	}
	select {
	case <-a.done:
		return fmt.Errorf("%s at %s: %w", request, a.at, a.err)
	default:
	}
	if a.link.answered.Load() {
		return fmt.Errorf("%s at %s: the answer is not that of a TURN server: another server has the port; %s",
			request, a.at, next)
	}
	return fmt.Errorf("no answer to the TURN request %s at %s after %.0f s: a firewall drops the packets, or no server is there; %s",
		request, a.at, time.Since(begun).Seconds(), next)
}

// inWords returns an error of a connection to the server with a text that names cause and remedy.
func inWords(err error, at string, begun time.Time) error {
	if words := words(err, at, begun); words != nil {
		return words
	}
	return err
}

// handshakeError returns the text for an error of the TLS or DTLS handshake. An error that is not an error of the
// connection is an alert or an error of the library. It means that the server uses another protocol or refuses the
// handshake.
func handshakeError(err error, at string, begun time.Time) error {
	if words := words(err, at, begun); words != nil {
		return words
	}
	return fmt.Errorf("the server at %s does not complete the handshake: it has no certificate for the name, or does not "+
		"use this protocol; %s", at, next)
}

// words returns an error with a text for users, or nil for an unknown error.
func words(err error, at string, begun time.Time) error {
	var dns *net.DNSError
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.As(err, &name):
		return fmt.Errorf("the certificate at %s is for %s, and not for %s: set the name with --sni, or use a certificate for it",
			at, strings.Join(config.CertificateNames(name.Certificate), ", "), name.Host)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate at %s is of an unknown issuer, or the one of an intermediate CA is missing: name the "+
			"issuer with --turn-ca-file", at)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate at %s is expired or not valid yet: renew it, or correct the clock of this machine", at)
	case errors.As(err, &invalid):
		return fmt.Errorf("the certificate at %s is not valid: %w", at, invalid)
	case errors.As(err, &dns):
		return fmt.Errorf("the host name %s is not resolved: correct the address of the server, or create a DNS record", dns.Name)
	}
	switch ReasonOf(err) {
	case Refused:
		return fmt.Errorf("%s refuses the connection: nothing listens there; %s", at, next)
	case Unrouted:
		return fmt.Errorf("this machine has no route to %s: use an address of another family", at)
	case Unreachable:
		return fmt.Errorf("the network reports that %s is unreachable; %s", at, next)
	case Silent:
		return fmt.Errorf("no answer from %s after %.0f s: a firewall drops the packets, or no server is there; %s",
			at, time.Since(begun).Seconds(), next)
	case Closed:
		return fmt.Errorf("%s has closed the connection; %s", at, next)
	}
	return nil
}

// Reason is the cause for which a connection does not work.
type Reason int

// The reasons. Other is an error that the network does not cause.
const (
	Other       Reason = iota
	Refused            // TCP RST, or ICMP port unreachable
	Unrouted           // this machine has no route
	Unreachable        // reported by the network, or by the firewall of this machine
	Silent             // nothing arrived in time
	Closed             // the peer has closed the connection
)

// ReasonOf returns the reason of an error of the network.
func ReasonOf(err error) Reason {
	var timeout net.Error
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
	switch {
	case is(syscall.ECONNREFUSED):
		return Refused
	case is(syscall.ENETUNREACH, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT):
		return Unrouted
	case is(syscall.EHOSTUNREACH, syscall.EPERM, syscall.EACCES):
		return Unreachable
	case is(os.ErrDeadlineExceeded, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return Silent
	case is(io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE):
		return Closed
	}
	return Other
}
