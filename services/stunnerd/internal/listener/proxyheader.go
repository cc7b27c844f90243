package listener

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Constants of the PROXY protocol, versions 1 and 2 (proxy-protocol.txt of HAProxy, sections 2.1 and 2.2).
const (
	proxySignature1 = "PROXY"
	proxySignature2 = "\r\n\r\n\x00\r\nQUIT\n"

	// proxyLine is the maximum length of a header of version 1 with its CRLF.
	proxyLine = 107
	// proxyPrefix is the length of the fixed part of a header of version 2.
	proxyPrefix = len(proxySignature2) + 4
	// proxyLimit is the maximum length of the rest of a header of version 2. It has room for the addresses and for
	// extensions with a certificate of a client.
	proxyLimit = 4096

	proxyLocal, proxyClient = 0x20, 0x21 // version and command
	proxyTCP4, proxyTCP6    = 0x11, 0x21 // family and transport
	proxyUnspecified        = 0x00
	proxyUnix               = 0x31
)

var (
	// errProxyHeader means that a connection from a load balancer does not begin with a header of the PROXY protocol.
	errProxyHeader = errors.New("read header of the PROXY protocol")
	// errUnexpectedProxyHeader means that a connection begins with a header of the PROXY protocol although its address
	// belongs to no load balancer, or that it has a second header.
	errUnexpectedProxyHeader = errors.New("unexpected header of the PROXY protocol")
)

// beginsProxyHeader reports whether the first bytes of a connection begin a header of the PROXY protocol. No TLS record
// and no STUN message begins with these bytes, and 0x5052 is not a channel number.
func beginsProxyHeader(b []byte) bool {
	const enough = 4
	return len(b) >= enough &&
		(string(b[:enough]) == proxySignature1[:enough] || string(b[:enough]) == proxySignature2[:enough])
}

// readProxyHeader reads a header of the PROXY protocol, and no byte after it. It returns the address of the client, or
// the zero AddrPort if the header names none: the load balancer has opened the connection itself, for example to check
// whether the server is healthy, or the client has no IP address. The error wraps errProxyHeader, unless the connection
// ends before its first byte.
//
// No library is used. github.com/pires/go-proxyproto reads through a buffer of 4 KiB, which also holds bytes after the
// header, and keeps the extensions in memory. Here nothing is kept, so TLS and the framer read from the connection
// itself.
func readProxyHeader(from io.Reader) (netip.AddrPort, error) {
	buf := make([]byte, max(proxyLine, proxyPrefix))
	start := buf[:len(proxySignature2)]
	if n, err := io.ReadFull(from, start); err != nil {
		if n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			return netip.AddrPort{}, err
		}
		return netip.AddrPort{}, fmt.Errorf("%w: %w", errProxyHeader, err)
	}
	var client netip.AddrPort
	var err error
	switch {
	case string(start) == proxySignature2:
		client, err = readProxyHeader2(from, buf)
	case bytes.HasPrefix(start, []byte(proxySignature1+" ")):
		client, err = readProxyHeader1(from, buf)
	default:
		err = errors.New("missing")
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%w: %w", errProxyHeader, err)
	}
	return client, nil
}

// readProxyHeader1 reads the rest of a header of version 1, a line of text. The first bytes of it are in buf.
func readProxyHeader1(from io.Reader, buf []byte) (netip.AddrPort, error) {
	buf = buf[:proxyLine]
	n := len(proxySignature2)
	for !bytes.HasSuffix(buf[:n], []byte("\r\n")) {
		more := 2 // at least CR LF follow, or LF
		if buf[n-1] == '\r' {
			more = 1
		}
		if n+more > len(buf) {
			return netip.AddrPort{}, fmt.Errorf("line is longer than %d bytes", proxyLine)
		}
		if _, err := io.ReadFull(from, buf[n:n+more]); err != nil {
			return netip.AddrPort{}, err
		}
		n += more
	}
	line := string(buf[:n-len("\r\n")])
	if strings.HasPrefix(line+" ", proxySignature1+" UNKNOWN ") {
		return netip.AddrPort{}, nil // the receiver ignores the rest of the line
	}
	fields := strings.Split(line, " ")
	if len(fields) != 6 {
		return netip.AddrPort{}, errors.New("line has not six fields")
	}
	source, err := proxyAddress(fields[1], fields[2], fields[4])
	if err == nil {
		_, err = proxyAddress(fields[1], fields[3], fields[5])
	}
	if err != nil {
		return netip.AddrPort{}, err
	}
	return ofClient(source)
}

// proxyAddress parses an address and a port of a header of version 1.
func proxyAddress(family, address, port string) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(address)
	if err != nil || a.Zone() != "" || family != "TCP4" && a.Is4() || family != "TCP6" && a.Is6() {
		return netip.AddrPort{}, errors.New("no address of the family")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != port {
		return netip.AddrPort{}, errors.New("no port")
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

// readProxyHeader2 reads the rest of a header of version 2 after its signature. It discards the extensions.
func readProxyHeader2(from io.Reader, buf []byte) (netip.AddrPort, error) {
	head := buf[:proxyPrefix-len(proxySignature2)]
	if _, err := io.ReadFull(from, head); err != nil {
		return netip.AddrPort{}, err
	}
	command, family, length := head[0], head[1], int(binary.BigEndian.Uint16(head[2:]))
	if command != proxyLocal && command != proxyClient || family>>4 > 3 || family&0x0F > 2 ||
		family != proxyUnspecified && (family>>4 == 0 || family&0x0F == 0) {
		return netip.AddrPort{}, errors.New("undefined version, command or family")
	}
	if length > proxyLimit {
		return netip.AddrPort{}, fmt.Errorf("%d bytes are more than %d", length, proxyLimit)
	}
	size := 0 // length of the addresses
	if command == proxyClient {
		switch family {
		case proxyTCP4:
			size = 2*4 + 2*2
		case proxyTCP6:
			size = 2*16 + 2*2
		case proxyUnspecified, proxyUnix:
		default:
			return netip.AddrPort{}, errors.New("transport of the client is no stream")
		}
	}
	if length < size {
		return netip.AddrPort{}, errors.New("too short for its addresses")
	}
	addresses := buf[:size]
	if _, err := io.ReadFull(from, addresses); err != nil {
		return netip.AddrPort{}, err
	}
	var client netip.AddrPort
	if size > 0 {
		ip, _ := netip.AddrFromSlice(addresses[:(size-4)/2]) // 4 or 16 bytes
		var err error
		if client, err = ofClient(netip.AddrPortFrom(ip, binary.BigEndian.Uint16(addresses[size-4:]))); err != nil {
			return netip.AddrPort{}, err
		}
	}
	for left := length - size; left > 0; {
		n, err := io.ReadFull(from, buf[:min(left, len(buf))])
		if left -= n; err != nil {
			return netip.AddrPort{}, err
		}
	}
	return client, nil
}

// ofClient returns an address of a header. It returns the zero AddrPort for an address that a client cannot have.
func ofClient(a netip.AddrPort) (netip.AddrPort, error) {
	ip := a.Addr().Unmap()
	if ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || a.Port() == 0 {
		return netip.AddrPort{}, errors.New("no client has this address")
	}
	return netip.AddrPortFrom(ip, a.Port()), nil
}
