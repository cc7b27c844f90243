package listener

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// header2 returns a header of version 2. length is the length in the header. If it is negative, the header has the
// actual length.
func header2(command, family byte, rest []byte, length int) string {
	if length < 0 {
		length = len(rest)
	}
	return proxySignature2 + string([]byte{command, family, byte(length >> 8), byte(length)}) + string(rest)
}

// addresses2 returns the addresses of a header of version 2.
func addresses2(source, destination string) (rest []byte) {
	s, d := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	rest = slices.Concat(s.Addr().AsSlice(), d.Addr().AsSlice())
	for _, a := range []netip.AddrPort{s, d} {
		rest = append(rest, byte(a.Port()>>8), byte(a.Port()))
	}
	return rest
}

var (
	four = addresses2("203.0.113.7:40000", "192.0.2.1:443")
	six  = addresses2("[2001:db8::7]:40000", "[2001:db8::1]:443")
	// extensions are TLVs: an ALPN protocol, a wrong checksum, and a TLV of 1000 bytes.
	extensions = slices.Concat([]byte{1, 0, 4, 't', 'u', 'r', 'n', 3, 0, 4, 1, 2, 3, 4, 0x20, 3, 232}, make([]byte, 1000))
)

const ownAddress = "invalid AddrPort" // the header names no client

// proxyHeaders are headers with the client that they name; "" for an error.
var proxyHeaders = map[string]struct{ header, client string }{
	"1 over IPv4":                     {"PROXY TCP4 203.0.113.7 192.0.2.1 40000 443\r\n", "203.0.113.7:40000"},
	"1 over IPv6":                     {"PROXY TCP6 2001:db8::7 2001:db8::1 40000 443\r\n", "[2001:db8::7]:40000"},
	"1 with the longest addresses":    {"PROXY TCP6 2001:ffff:ffff:ffff:ffff:ffff:ffff:fff1 2001:ffff:ffff:ffff:ffff:ffff:ffff:fff2 65535 65535\r\n", "[2001:ffff:ffff:ffff:ffff:ffff:ffff:fff1]:65535"},
	"1 with the shortest addresses":   {"PROXY TCP6 ::1 :: 1 0\r\n", "[::1]:1"},
	"1 with an IPv4-mapped address":   {"PROXY TCP6 ::ffff:203.0.113.7 ::1 40000 443\r\n", "203.0.113.7:40000"},
	"1 with a loopback address":       {"PROXY TCP4 127.0.0.1 127.0.0.1 40000 443\r\n", "127.0.0.1:40000"},
	"1 with port 0 of the balancer":   {"PROXY TCP4 203.0.113.7 0.0.0.0 40000 0\r\n", "203.0.113.7:40000"},
	"1 of a health check":             {"PROXY UNKNOWN\r\n", ownAddress},
	"1 of an unknown client":          {"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", ownAddress},
	"1 of the longest unknown client": {"PROXY UNKNOWN " + strings.Repeat("x", proxyLine-16) + "\r\n", ownAddress},
	"1 that is too long":              {"PROXY UNKNOWN " + strings.Repeat("x", proxyLine-15) + "\r\n", ""},
	"1 without an end":                {"PROXY UNKNOWN " + strings.Repeat("x", 1<<16), ""},
	"1 of another family":             {"PROXY TCP4 2001:db8::7 2001:db8::1 40000 443\r\n", ""},
	"1 of the other family":           {"PROXY TCP6 203.0.113.7 192.0.2.1 40000 443\r\n", ""},
	"1 of two families":               {"PROXY TCP4 203.0.113.7 2001:db8::1 40000 443\r\n", ""},
	"1 of UDP":                        {"PROXY UDP4 203.0.113.7 192.0.2.1 40000 443\r\n", ""},
	"1 with port 0":                   {"PROXY TCP4 203.0.113.7 192.0.2.1 0 443\r\n", ""},
	"1 with port 65536":               {"PROXY TCP4 203.0.113.7 192.0.2.1 65536 443\r\n", ""},
	"1 with port -1":                  {"PROXY TCP4 203.0.113.7 192.0.2.1 -1 443\r\n", ""},
	"1 with port +1":                  {"PROXY TCP4 203.0.113.7 192.0.2.1 +1 443\r\n", ""},
	"1 with port 01":                  {"PROXY TCP4 203.0.113.7 192.0.2.1 01 443\r\n", ""},
	"1 with an octet 08":              {"PROXY TCP4 203.0.113.07 192.0.2.1 1 443\r\n", ""},
	"1 with an unspecified address":   {"PROXY TCP4 0.0.0.0 192.0.2.1 40000 443\r\n", ""},
	"1 with a multicast address":      {"PROXY TCP4 224.0.0.1 192.0.2.1 40000 443\r\n", ""},
	"1 with a broadcast address":      {"PROXY TCP4 255.255.255.255 192.0.2.1 40000 443\r\n", ""},
	"1 with a zone":                   {"PROXY TCP6 fe80::1%eth0 ::1 40000 443\r\n", ""},
	"1 with two spaces":               {"PROXY TCP4  203.0.113.7 192.0.2.1 40000 443\r\n", ""},
	"1 with a space at its end":       {"PROXY TCP4 203.0.113.7 192.0.2.1 40000 443 \r\n", ""},
	"1 with too few fields":           {"PROXY TCP4 203.0.113.7 192.0.2.1 40000\r\n", ""},
	"1 without CR":                    {"PROXY TCP4 203.0.113.7 192.0.2.1 40000 443\n" + strings.Repeat("x", 100), ""},
	"1 in lower case":                 {"proxy tcp4 203.0.113.7 192.0.2.1 40000 443\r\n", ""},
	"1 with a line inside":            {"PROXY TCP4 203.0.113.7\n192.0.2.1 40000 443\r\n", ""},
	"1 with an unknown word":          {"PROXY UNKNOWNS\r\n", ""},

	"2 over IPv4":                   {header2(0x21, 0x11, four, -1), "203.0.113.7:40000"},
	"2 over IPv6":                   {header2(0x21, 0x21, six, -1), "[2001:db8::7]:40000"},
	"2 with an IPv4-mapped address": {header2(0x21, 0x21, addresses2("[::ffff:203.0.113.7]:40000", "[::1]:443"), -1), "203.0.113.7:40000"},
	"2 with a loopback address":     {header2(0x21, 0x11, addresses2("127.0.0.1:40000", "127.0.0.1:443"), -1), "127.0.0.1:40000"},
	"2 with extensions":             {header2(0x21, 0x11, slices.Concat(four, extensions), -1), "203.0.113.7:40000"},
	"2 with a broken extension":     {header2(0x21, 0x11, slices.Concat(four, []byte{1, 255, 255}), -1), "203.0.113.7:40000"},
	"2 of the longest":              {header2(0x21, 0x11, slices.Concat(four, make([]byte, proxyLimit-len(four))), -1), "203.0.113.7:40000"},
	"2 of a health check":           {header2(0x20, 0x00, nil, -1), ownAddress},
	"2 of a health check with addresses": {
		header2(0x20, 0x11, four, -1), ownAddress,
	},
	"2 of a health check with too few addresses": {header2(0x20, 0x21, four, -1), ownAddress},
	"2 of a health check with extensions":        {header2(0x20, 0x00, extensions, -1), ownAddress},
	"2 of an unspecified client":                 {header2(0x21, 0x00, extensions, -1), ownAddress},
	"2 of a UNIX client":                         {header2(0x21, 0x31, make([]byte, 216), -1), ownAddress},
	"2 of 64 KiB":                                {header2(0x21, 0x11, slices.Concat(four, make([]byte, 1<<16)), 1<<16-1), ""},
	"2 that is too long":                         {header2(0x21, 0x11, slices.Concat(four, make([]byte, proxyLimit)), proxyLimit+1), ""},
	"2 of a health check that is too long":       {header2(0x20, 0x00, make([]byte, proxyLimit+1), -1), ""},
	"2 with too few addresses":                   {header2(0x21, 0x21, four, -1), ""},
	"2 without addresses":                        {header2(0x21, 0x11, nil, -1), ""},
	"2 of UDP":                                   {header2(0x21, 0x12, four, -1), ""},
	"2 of UDP over IPv6":                         {header2(0x21, 0x22, six, -1), ""},
	"2 of UNIX datagrams":                        {header2(0x21, 0x32, make([]byte, 216), -1), ""},
	"2 with an undefined transport":              {header2(0x21, 0x13, four, -1), ""},
	"2 with a family without transport":          {header2(0x21, 0x10, four, -1), ""},
	"2 with a transport without family":          {header2(0x21, 0x01, four, -1), ""},
	"2 with an undefined family":                 {header2(0x21, 0x41, four, -1), ""},
	"2 of a health check of an undefined family": {header2(0x20, 0x41, four, -1), ""},
	"2 with an undefined command":                {header2(0x22, 0x11, four, -1), ""},
	"2 of version 1":                             {header2(0x11, 0x11, four, -1), ""},
	"2 of version 3":                             {header2(0x31, 0x11, four, -1), ""},
	"2 with port 0":                              {header2(0x21, 0x11, addresses2("203.0.113.7:0", "192.0.2.1:443"), -1), ""},
	"2 with an unspecified address":              {header2(0x21, 0x21, addresses2("[::]:40000", "[::1]:443"), -1), ""},
	"2 with a multicast address":                 {header2(0x21, 0x21, addresses2("[ff02::1]:40000", "[::1]:443"), -1), ""},
	"2 with a mapped multicast address":          {header2(0x21, 0x21, addresses2("[::ffff:224.0.0.1]:40000", "[::1]:443"), -1), ""},
	"a request":                                  {string(stunMessage(40)), ""},
	"a ClientHello":                              {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("x", 100), ""},
	"something else":                             {"GET / HTTP/1.1\r\n\r\n", ""},
}

// T-17: a header names a client, or the connection is refused. An incomplete header is refused. No byte after a header
// is read, for any segmentation.
func TestProxyHeaders(t *testing.T) {
	for name, tc := range proxyHeaders {
		t.Run(name, func(t *testing.T) {
			for how, split := range map[string]func(io.Reader) io.Reader{
				"at once":       func(r io.Reader) io.Reader { return r },
				"byte by byte":  iotest.OneByteReader,
				"in two halves": iotest.HalfReader,
			} {
				from := strings.NewReader(tc.header + "the rest")
				client, err := readProxyHeader(split(from))
				switch {
				case tc.client == "":
					if !errors.Is(err, errProxyHeader) {
						t.Errorf("%s: client %s, error %v; want an error", how, client, err)
					}
					if read := int(from.Size()) - from.Len(); read > proxyPrefix+proxyLimit {
						t.Errorf("%s: %d bytes of a refused header are read", how, read)
					}
				case err != nil || client.String() != tc.client:
					t.Errorf("%s: client %s, error %v; want %s", how, client, err, tc.client)
				case from.Len() != len("the rest"):
					t.Errorf("%s: %d bytes are left, want %d", how, from.Len(), len("the rest"))
				}
			}
			if tc.client == "" {
				return
			}
			for n := range len(tc.header) {
				client, err := readProxyHeader(strings.NewReader(tc.header[:n]))
				if err == nil || n > 0 && !errors.Is(err, errProxyHeader) {
					t.Fatalf("the first %d bytes: client %s, error %v", n, client, err)
				}
			}
		})
	}
}

// A connection that ends before its first byte is not counted as a refused header.
func TestConnectionWithoutAByteHasNoBadHeader(t *testing.T) {
	for _, ended := range []error{io.EOF, io.ErrClosedPipe} {
		if _, err := readProxyHeader(iotest.ErrReader(ended)); !errors.Is(err, ended) || errors.Is(err, errProxyHeader) {
			t.Errorf("%v: %v", ended, err)
		}
	}
}

// T-15: any bytes are refused or name a valid client, and at most the length of the longest header is read.
func FuzzProxyHeader(f *testing.F) {
	for _, tc := range proxyHeaders {
		f.Add([]byte(tc.header), uint8(0))
		f.Add([]byte(tc.header), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		from := bytes.NewReader(data)
		var split io.Reader = from
		if size > 0 {
			split = &pieces{from, int(size)}
		}
		client, err := readProxyHeader(split)
		if again, e := readProxyHeader(bytes.NewReader(data)); again != client || (e == nil) != (err == nil) {
			t.Errorf("at once: %s, %v; in pieces: %s, %v", again, e, client, err)
		}
		read := len(data) - from.Len()
		if read > proxyPrefix+proxyLimit {
			t.Errorf("%d bytes are read", read)
		}
		switch {
		case err != nil && client.IsValid():
			t.Errorf("client %s with error %v", client, err)
		case err == nil && !beginsProxyHeader(data):
			t.Errorf("%x is read as a header", data)
		case err == nil && client.IsValid():
			if a := client.Addr(); a.Is4In6() || a.IsMulticast() || a.IsUnspecified() || a.Zone() != "" || client.Port() == 0 {
				t.Errorf("client %s", client)
			}
			if same := header1Of(client); string(data[:5]) == proxySignature1 {
				if again, err := readProxyHeader(strings.NewReader(same)); err != nil || again != client {
					t.Errorf("%q is read as %s, %v", same, again, err)
				}
			}
		}
	})
}

// header1Of returns the header of version 1 of a client.
func header1Of(client netip.AddrPort) string {
	family, balancer := "TCP4", "192.0.2.1"
	if client.Addr().Is6() {
		family, balancer = "TCP6", "2001:db8::1"
	}
	return fmt.Sprintf("PROXY %s %s %s %d 443\r\n", family, client.Addr(), balancer, client.Port())
}

// pieces is a reader that returns at most size bytes at a time.
type pieces struct {
	from io.Reader
	size int
}

func (p *pieces) Read(b []byte) (int, error) { return p.from.Read(b[:min(len(b), p.size)]) }
