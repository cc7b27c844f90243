package cluster

import (
	"net/netip"
)

// unreachable is the minimum prefix length for an address that no route allows. It is longer than any address.
const unreachable = 129

// special is a prefix whose addresses are allowed only by routes whose prefix has at least minBits bits.
type special struct {
	prefix netip.Prefix
	// minBits is the minimum length of the route prefix, or unreachable if no route allows the addresses.
	minBits int
}

// specials lists special prefixes by the first byte of the address. The sources are the IANA special-purpose address
// registries (RFC 6890) and the manuals of clouds. Private ranges (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16,
// 100.64.0.0/10, fc00::/7), 198.18.0.0/15 and the documentation prefixes are not listed, because pods and laboratories
// use them.
var specials = struct{ v4, v6 [256][]special }{
	v4: byFirstByte(never4, named4),
	v6: byFirstByte(never6, named6),
}

var (
	// never4 and never6 are prefixes that contain no media servers and are dangerous to reach. No route allows them.
	never4 = []string{
		"0.0.0.0/8",          // this network, RFC 791 §3.2
		"169.254.0.0/16",     // link-local, RFC 3927; metadata services of most clouds
		"224.0.0.0/4",        // multicast, RFC 5771
		"240.0.0.0/4",        // reserved and limited broadcast, RFC 1112 §4, RFC 919 §7
		"100.100.100.200/32", // metadata service of Alibaba Cloud
	}
	never6 = []string{
		"::/128",            // unspecified, RFC 4291 §2.5.2
		"fe80::/10",         // link-local, RFC 4291 §2.5.6
		"ff00::/8",          // multicast, RFC 4291 §2.7
		"fd00:ec2::254/128", // metadata service of AWS
	}

	// named4 and named6 are allowed only by a route for the whole prefix or a part of it, and not by a route for a
	// wider prefix.
	named4 = []string{
		"127.0.0.0/8",      // loopback, RFC 1122 §3.2.1.3
		"168.63.129.16/32", // DNS, DHCP and health service of an Azure host
		"192.0.0.0/24",     // IETF protocol assignments, RFC 6890; 192.0.0.192 is a metadata service of Oracle Cloud
		"192.88.99.0/24",   // 6to4 relay anycast, RFC 7526
	}
	named6 = []string{
		"::1/128",                // loopback, RFC 4291 §2.5.3
		"::ffff:0:0:0/96",        // IPv4-translated, RFC 2765 §2.1
		"64:ff9b:1::/48",         // local-use IPv4/IPv6 translation, RFC 8215
		"100::/64",               // discard-only, RFC 6666
		"100:0:0:1::/64",         // dummy prefix, RFC 9780
		"2001::/23",              // IETF protocol assignments, RFC 2928
		"2001::/32",              // Teredo, RFC 4380
		"5f00::/16",              // segment routing identifiers, RFC 9602
		"fec0::/10",              // site-local, deprecated by RFC 3879
		"fd00:42::42/128",        // metadata service of Scaleway
		"fd00:c1::a9fe:a9fe/128", // metadata service of Oracle Cloud
		"fd00:ec2::/32",          // services of an AWS host, such as DNS, time and pod credentials
		"fd20:ce::254/128",       // metadata service of Google Cloud
	}
)

// byFirstByte indexes prefixes. A prefix shorter than a byte is listed under each first byte that it contains.
func byFirstByte(never, named []string) (index [256][]special) {
	add := func(p netip.Prefix, minBits int) {
		first, bits := int(p.Addr().AsSlice()[0]), max(8-p.Bits(), 0)
		for b := first; b < first+1<<bits; b++ {
			index[b] = append(index[b], special{p, minBits})
		}
	}
	for _, text := range never {
		add(netip.MustParsePrefix(text), unreachable)
	}
	for _, text := range named {
		p := netip.MustParsePrefix(text)
		add(p, p.Bits())
	}
	return index
}

// minRouteBits returns the length of the shortest route prefix that allows an address: 0 for most addresses, and
// unreachable for an address that no route allows.
func minRouteBits(addr netip.Addr) (bits int) {
	if !addr.IsValid() || addr.Zone() != "" {
		return unreachable
	}
	list := specials.v6[addr.As16()[0]]
	if addr.Is4() {
		list = specials.v4[addr.As4()[0]]
	}
	for _, s := range list {
		if s.prefix.Contains(addr) {
			bits = max(bits, s.minBits)
		}
	}
	return bits
}

// form is a kind of IPv6 address that contains IPv4 addresses. A router or a host may forward to an IPv4 address in it.
type form struct {
	prefix netip.Prefix
	places []place
	// ambiguous is set if the IPv6 address does not show which of the places contains the IPv4 address. A place that
	// does not contain a valid unicast address is then ignored.
	ambiguous bool
}

// place is the position of an IPv4 address in an IPv6 address: four bytes, each XORed with mask.
type place struct {
	bytes [4]int
	mask  byte
}

// forms are the IPv6 addresses with an IPv4 address inside, except ISATAP, which has no prefix.
var forms = []form{
	{prefix: netip.MustParsePrefix("::/96"), places: lowest},           // IPv4-compatible, RFC 4291 §2.5.5.1
	{prefix: netip.MustParsePrefix("::ffff:0:0:0/96"), places: lowest}, // IPv4-translated, RFC 2765 §2.1
	{prefix: netip.MustParsePrefix("64:ff9b::/96"), places: lowest},    // NAT64, RFC 6052 §2.1
	// NAT64 with any prefix length, RFC 8215, RFC 6052 §2.2
	{prefix: netip.MustParsePrefix("64:ff9b:1::/48"), ambiguous: true, places: []place{
		{bytes: [4]int{6, 7, 9, 10}}, {bytes: [4]int{7, 9, 10, 11}},
		{bytes: [4]int{9, 10, 11, 12}}, {bytes: [4]int{12, 13, 14, 15}},
	}},
	{prefix: netip.MustParsePrefix("2001::/32"), places: []place{ // Teredo, RFC 4380 §4: server and client
		{bytes: [4]int{4, 5, 6, 7}}, {bytes: [4]int{12, 13, 14, 15}, mask: 0xff},
	}},
	{prefix: netip.MustParsePrefix("2002::/16"), places: []place{{bytes: [4]int{2, 3, 4, 5}}}}, // 6to4, RFC 3056 §2
}

// formsOf indexes forms by the first byte of the address.
var formsOf = func() (index [256][]form) {
	for _, f := range forms {
		first := f.prefix.Addr().As16()[0]
		index[first] = append(index[first], f)
	}
	return index
}()

var lowest = []place{{bytes: [4]int{12, 13, 14, 15}}}

// maxEmbedded is the largest number of IPv4 addresses in an IPv6 address: an address of the prefix 64:ff9b:1::/48 can
// contain one in four places, and may be an ISATAP address too.
const maxEmbedded = 5

// embedded returns the IPv4 addresses inside an IPv6 address. A client may reach the IPv6 address only if it may reach
// all of these. possible is false if an address with this prefix must contain an IPv4 address and has none. room is
// memory for the result, so that the function does not allocate.
func embedded(addr netip.Addr, room *[maxEmbedded]netip.Addr) (inside []netip.Addr, possible bool) {
	if addr.Is4() {
		return nil, true
	}
	raw := addr.As16()
	inside, possible = room[:0], true
	for i := range formsOf[raw[0]] {
		if f := &formsOf[raw[0]][i]; f.prefix.Contains(addr) && addr != netip.IPv6Loopback() {
			inside, possible = f.read(raw, inside)
			break
		}
	}
	if raw[8]&^2 == 0 && raw[9] == 0 && raw[10] == 0x5e && raw[11] == 0xfe { // ISATAP, RFC 5214 §6.1
		inside = append(inside, lowest[0].read(raw))
	}
	return inside, possible
}

func (f *form) read(raw [16]byte, inside []netip.Addr) ([]netip.Addr, bool) {
	for _, p := range f.places {
		if a := p.read(raw); !f.ambiguous || a.As4()[0] != 0 && a.As4()[0] < 224 {
			inside = append(inside, a)
		}
	}
	return inside, len(inside) > 0
}

func (p place) read(raw [16]byte) netip.Addr {
	var a [4]byte
	for i, at := range p.bytes {
		a[i] = raw[at] ^ p.mask
	}
	return netip.AddrFrom4(a)
}
