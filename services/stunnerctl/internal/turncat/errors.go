package turncat

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/pion/stun/v2"
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

// next names the command that finds the part of the way at fault.
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

// inWords returns an error of a connection to the server in words that name cause and remedy.
func inWords(err error, at string, begun time.Time) error {
	if words := words(err, at, begun); words != nil {
		return words
	}
	return err
}

// handshakeError returns an error of the TLS or DTLS handshake in words. Others than those of a connection are alerts and
// texts of the library, and mean that the server speaks another protocol or refuses.
func handshakeError(err error, at string, begun time.Time) error {
	if words := words(err, at, begun); words != nil {
		return words
	}
	return fmt.Errorf("the server at %s does not complete the handshake: it has no certificate for the name, or does not "+
		"use this protocol; %s", at, next)
}

// words returns an error in words, or nil for one that it does not know.
func words(err error, at string, begun time.Time) error {
	var dns *net.DNSError
	var timeout net.Error
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.As(err, &name):
		names := name.Certificate.DNSNames
		for _, a := range name.Certificate.IPAddresses {
			names = append(names, a.String())
		}
		return fmt.Errorf("the certificate at %s is for %s, and not for %s: set the name with --sni, or use a certificate for it",
			at, strings.Join(names, ", "), name.Host)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate at %s is of an unknown issuer, or the one of an intermediate CA is missing: name the "+
			"issuer with --turn-ca-file", at)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate at %s is expired or not valid yet: renew it, or correct the clock of this machine", at)
	case errors.As(err, &invalid):
		return fmt.Errorf("the certificate at %s is not valid: %w", at, invalid)
	case errors.As(err, &dns):
		return fmt.Errorf("the host name %s is not resolved: correct the address of the server, or create a DNS record", dns.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refuses the connection: nothing listens there; %s", at, next)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT):
		return fmt.Errorf("this machine has no route to %s: use an address of another family", at)
	case errors.Is(err, syscall.EHOSTUNREACH):
		return fmt.Errorf("the network reports that %s is unreachable; %s", at, next)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("no answer from %s after %.0f s: a firewall drops the packets, or no server is there; %s",
			at, time.Since(begun).Seconds(), next)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%s has closed the connection; %s", at, next)
	}
	return nil
}
