package offload

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// datagram describes an Ethernet frame with a UDP datagram. The zero values describe a usual frame.
type datagram struct {
	from, to netip.AddrPort
	payload  []byte
	class    byte
	ttl      byte // 64 by default

	ethernet    []byte // the first 12 bytes
	vlan        bool
	version     byte
	protocol    byte   // UDP by default
	options     []byte // of the IPv4 header, or an extension header of IPv6
	extension   byte   // the number of the extension header
	wrongHeader bool   // checksum of the IPv4 header
	noChecksum  bool   // of UDP
	trailer     int    // bytes of the IP packet after the UDP datagram
	padding     int    // bytes of the frame after the IP packet
	lengthOfUDP int    // added to the length in the UDP header
	lengthOfIP  int    // added to the length in the IP header
	fragment    uint16 // flags and offset in the IPv4 header
}

func (d datagram) frame() []byte {
	udp := binary.BigEndian.AppendUint16(nil, d.from.Port())
	udp = binary.BigEndian.AppendUint16(udp, d.to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(d.payload)+d.lengthOfUDP))
	udp = append(append(udp, 0, 0), d.payload...)
	from, to := d.from.Addr().AsSlice(), d.to.Addr().AsSlice()
	if !d.noChecksum {
		check := ^fold(sum(from) + sum(to) + unix.IPPROTO_UDP + uint64(8+len(d.payload)+d.lengthOfUDP) + sum(udp))
		if check == 0 {
			check = 0xffff
		}
		binary.BigEndian.PutUint16(udp[6:], check)
	}
	udp = append(udp, make([]byte, d.trailer)...)
	ttl := d.ttl
	if ttl == 0 {
		ttl = 64
	}
	protocol := d.protocol
	if protocol == 0 {
		protocol = unix.IPPROTO_UDP
	}
	b := append([]byte(nil), d.ethernet...)
	if d.vlan {
		b = append(b, 0x81, 0, 0, 5)
	}
	var ip []byte
	if d.from.Addr().Is4() {
		version := byte(4)
		if d.version != 0 {
			version = d.version
		}
		header := 20 + len(d.options)
		ip = append(ip, version<<4|byte(header/4), d.class)
		ip = binary.BigEndian.AppendUint16(ip, uint16(header+len(udp)+d.lengthOfIP))
		ip = append(ip, 0, 0)
		ip = binary.BigEndian.AppendUint16(ip, d.fragment)
		ip = append(ip, ttl, protocol, 0, 0)
		ip = append(append(append(ip, from...), to...), d.options...)
		check := ^fold(sum(ip))
		if d.wrongHeader {
			check++
		}
		binary.BigEndian.PutUint16(ip[10:], check)
		b = append(b, 8, 0)
	} else {
		version := uint32(6)
		if d.version != 0 {
			version = uint32(d.version)
		}
		ip = binary.BigEndian.AppendUint32(ip, version<<28|uint32(d.class)<<20)
		ip = binary.BigEndian.AppendUint16(ip, uint16(len(d.options)+len(udp)+d.lengthOfIP))
		next := protocol
		if len(d.options) > 0 {
			next = d.extension
		}
		ip = append(ip, next, ttl)
		ip = append(append(append(ip, from...), to...), d.options...)
		b = append(b, 0x86, 0xdd)
	}
	b = append(append(b, ip...), udp...)
	return append(b, make([]byte, d.padding)...)
}

// ethernet returns the addresses of frames from a namespace to an interface of the relay.
func (w *topology) ethernet(t testing.TB, from *space, to string) []byte {
	t.Helper()
	b := make([]byte, 12)
	address := func(at int, name string) {
		if i, err := net.InterfaceByName(name); err == nil {
			copy(b[at:], i.HardwareAddr)
		}
	}
	if w.oneArm {
		to = "client" // net.InterfaceByName does not find the alternative name peer
	}
	w.relay.do(func() { address(0, to) })
	from.do(func() { address(6, "eth0") })
	return b
}

// A packet of an unsupported form is handled as without the programs.
func TestWrongPackets(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		v6 := p.Client.Addr().Is6()
		payload := bytes.Repeat([]byte("payload."), 20)
		up := datagram{
			from:     p.Client,
			to:       p.Listener,
			payload:  frame(p.Channel, payload),
			ethernet: w.ethernet(t, w.client, "client"),
		}
		down := datagram{from: p.Peer, to: p.Relay, payload: payload, ethernet: w.ethernet(t, w.peer, "peer")}
		options, extension := []byte{1, 1, 1, 1}, byte(0)
		if v6 {
			options = []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0} // hop-by-hop options with padding
		}
		w.relay.run(t, "ip link set client promisc on")
		w.relay.run(t, "ip link set peer promisc on")
		time.Sleep(3 * changeInterval)
		p.warm(t, r)

		const (
			inKernel = iota
			inUserSpace
			nowhere
		)
		short := []byte("short")
		stun, noSTUN := append([]byte{3}, payload[1:]...), append([]byte{4}, payload[1:]...)
		for _, c := range []struct {
			name   string
			change func(d *datagram, up bool) // changes the datagram of the test
			up     int                        // where the changed datagram is forwarded
			down   int
			want   []byte // the payload that arrives, by default the sent payload
			v4, v6 bool   // only for this family
		}{
			{name: "unchanged", change: func(*datagram, bool) {}},
			{name: "Ethernet padding", change: func(d *datagram, up bool) {
				if d.payload, d.padding = short, 8; up {
					d.payload = frame(testChannel, short)
				}
			}, up: inUserSpace, down: inUserSpace, want: short},
			{
				name: "trailer behind the UDP datagram", up: inUserSpace, down: inUserSpace,
				change: func(d *datagram, _ bool) { d.trailer = 4 },
			},
			{
				name: "truncated IP packet", up: nowhere, down: nowhere,
				change: func(d *datagram, _ bool) { d.lengthOfIP = 4 },
			},
			{
				name: "UDP length too long", up: nowhere, down: nowhere,
				change: func(d *datagram, _ bool) { d.lengthOfUDP = 4 },
			},
			{
				name: "UDP length too short", up: nowhere, down: nowhere,
				change: func(d *datagram, _ bool) { d.lengthOfUDP = 1 - 8 - len(d.payload) },
			},
			{name: "version", change: func(d *datagram, _ bool) { d.version = 5 }, up: nowhere, down: nowhere},
			{
				name: "header checksum", up: nowhere, down: nowhere, v4: true,
				change: func(d *datagram, _ bool) { d.wrongHeader = true },
			},
			{name: "no UDP checksum", change: func(d *datagram, _ bool) { d.noChecksum = true }, v4: true},
			{
				name: "no UDP checksum", up: nowhere, down: nowhere, v6: true,
				change: func(d *datagram, _ bool) { d.noChecksum = true },
			},
			{name: "TTL 1", change: func(d *datagram, _ bool) { d.ttl = 1 }, up: inUserSpace, down: inUserSpace},
			{name: "TTL 2", change: func(d *datagram, _ bool) { d.ttl = 2 }},
			{
				name: "options or extension header", up: inUserSpace, down: inUserSpace,
				change: func(d *datagram, _ bool) { d.options, d.extension = options, extension },
			},
			{name: "options like a UDP header", change: func(d *datagram, up bool) {
				d.options = binary.BigEndian.AppendUint16(nil, d.from.Port())
				d.options = binary.BigEndian.AppendUint16(d.options, d.to.Port())
				d.options = binary.BigEndian.AppendUint16(d.options, uint16(16+len(d.payload)))
				// The header is also valid without the options.
				d.options = binary.BigEndian.AppendUint16(d.options, ^fold(sum(d.options)))
			}, up: nowhere, down: nowhere, v4: true},
			{
				name: "another protocol", up: nowhere, down: nowhere,
				change: func(d *datagram, _ bool) { d.protocol = 200 },
			},
			{
				name: "first fragment", up: nowhere, down: nowhere, v4: true,
				change: func(d *datagram, _ bool) { d.fragment = 0x2000 },
			},
			{
				name: "later fragment", up: nowhere, down: nowhere, v4: true,
				change: func(d *datagram, _ bool) { d.fragment = 100 },
			},
			{name: "don't fragment", change: func(d *datagram, _ bool) { d.fragment = 0x4000 }, v4: true},
			{name: "VLAN", change: func(d *datagram, _ bool) { d.vlan = true }, up: nowhere, down: nowhere},
			{
				name: "frame to another host", up: nowhere, down: nowhere,
				change: func(d *datagram, _ bool) { d.ethernet = append([]byte{2, 2, 2, 2, 2, 2}, d.ethernet[6:]...) },
			},
			{
				name: "other source port", up: nowhere, down: nowhere,
				change: func(d *datagram, _ bool) { d.from = netip.AddrPortFrom(d.from.Addr(), d.from.Port()+1) },
			},
			{
				name: "other source address", up: nowhere, down: nowhere,
				change: func(d *datagram, _ bool) { d.from = netip.AddrPortFrom(d.from.Addr().Next(), d.from.Port()) },
			},
			{
				name: "other destination port", up: nowhere, down: nowhere,
				change: func(d *datagram, _ bool) { d.to = netip.AddrPortFrom(d.to.Addr(), d.to.Port()+1) },
			},
			{name: "other destination address", change: func(d *datagram, up bool) {
				if d.to = netip.AddrPortFrom(p.Listener.Addr(), d.to.Port()); up {
					d.to = netip.AddrPortFrom(p.Relay.Addr(), d.to.Port())
				}
			}, up: nowhere, down: nowhere},
			{name: "destination of another host", change: func(d *datagram, up bool) {
				if d.to = netip.AddrPortFrom(p.Client.Addr(), d.to.Port()); up {
					d.to = netip.AddrPortFrom(p.Peer.Addr(), d.to.Port())
				}
			}, up: nowhere, down: nowhere},
			{name: "padding of ChannelData", change: func(d *datagram, up bool) {
				if up {
					d.payload = append(frame(testChannel, short), 0, 0, 0)
				}
			}, up: inUserSpace, want: short},
			{name: "length of ChannelData too long", change: func(d *datagram, up bool) {
				if up {
					d.payload = append(frame(testChannel, payload)[:4:4], payload[:len(payload)-1]...)
				}
			}, up: nowhere},
			{name: "other channel", change: func(d *datagram, up bool) {
				if up {
					d.payload = frame(testChannel+1, payload)
				}
			}, up: nowhere},
			{name: "half a header", change: func(d *datagram, up bool) {
				if d.payload = payload[:3]; up {
					d.payload = frame(testChannel, nil)[:3]
				}
			}, up: nowhere, down: inUserSpace, want: payload[:3]},
			{name: "no payload", change: func(d *datagram, up bool) {
				if d.payload = nil; up {
					d.payload = frame(testChannel, nil)
				}
			}, down: inUserSpace, want: []byte{}},
			{name: "STUN message", change: func(d *datagram, up bool) {
				if d.payload = stun; up {
					d.payload = frame(testChannel, stun)
				}
			}, up: inUserSpace, want: stun},
			{name: "payload that is no STUN message", change: func(d *datagram, up bool) {
				if d.payload = noSTUN; up {
					d.payload = frame(testChannel, noSTUN)
				}
			}, want: noSTUN},
			{name: "peer that sends ChannelData", change: func(d *datagram, up bool) {
				d.payload = frame(testChannel, payload)
				if up {
					d.payload = frame(testChannel, d.payload)
				}
			}, want: frame(testChannel, payload)},
		} {
			if c.v4 && v6 || c.v6 && !v6 {
				continue
			}
			for name, place := range map[string]int{"up": c.up, "down": c.down} {
				before := r.do(t, "state")
				d, from, to := up, w.client, p.peer
				if name == "down" {
					d, from, to = down, w.peer, p.client
				}
				c.change(&d, name == "up")
				from.inject(t, "eth0", d.frame())
				within := timeout
				if place == nowhere {
					within = 30 * time.Millisecond
				}
				got := receive(to, within)
				after := r.do(t, "state")
				want := payload
				if c.want != nil && (name == "up" || !bytes.Equal(d.payload, payload)) {
					want = c.want
				}
				if name == "down" {
					want = frame(p.Channel, want)
				}
				if place == nowhere {
					want = nil
				}
				if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
					t.Errorf("%s, %s: got %d bytes %.20q, want %d bytes", c.name, name, len(got), got, len(want))
				}
				kernel, user := after.Kernel.minus(before.Kernel), after.User.minus(before.User)
				forwarded := func(place int, c Counters) (n uint64) { return c.Up.Packets + c.Down.Packets }
				for at, counted := range map[int]Counters{inKernel: kernel, inUserSpace: user} {
					n := uint64(0)
					if at == place {
						n = 1
					}
					if forwarded(at, counted) != n {
						t.Errorf(
							"%s, %s: forwarded in the kernel %d, in user space %d, want place %d",
							c.name,
							name,
							kernel.Up.Packets+kernel.Down.Packets,
							user.Up.Packets+user.Down.Packets,
							place,
						)
						break
					}
				}
			}
		}
	})
}

// A packet with the addresses of a client or a peer that arrives at another interface than expected is handled as
// without the programs: the host drops it if it verifies sources strictly (rp_filter), or else user space handles it.
func TestPacketsAtAnotherInterface(t *testing.T) {
	t.Parallel()
	eachIn(t, hookSetups(), func(t *testing.T, w *topology, r *relayProcess, p *path) {
		payload := bytes.Repeat([]byte("payload."), 20)
		up := datagram{from: p.Client, to: p.Listener, payload: frame(p.Channel, payload)}
		down := datagram{from: p.Peer, to: p.Relay, payload: payload}
		for _, c := range []struct {
			name     string
			d        datagram
			from     *space // of the sender
			at       string // the interface
			receiver *net.UDPConn
			want     []byte
			other    bool
		}{
			{"client", up, w.client, "client", p.peer, payload, false},
			{"client at the other interface", up, w.peer, "peer", p.peer, payload, true},
			{"peer", down, w.peer, "peer", p.client, frame(p.Channel, payload), false},
			{"peer at the other interface", down, w.client, "client", p.client, frame(p.Channel, payload), true},
		} {
			before := r.do(t, "state")
			c.d.ethernet = w.ethernet(t, c.from, c.at)
			c.from.inject(t, "eth0", c.d.frame())
			if got := receive(c.receiver, timeout); !bytes.Equal(got, c.want) {
				t.Errorf("%s: got %d bytes, want %d", c.name, len(got), len(c.want))
			}
			after := r.do(t, "state")
			kernel, user := after.Kernel.minus(before.Kernel), after.User.minus(before.User)
			inKernel, inUserSpace := kernel.Up.Packets+kernel.Down.Packets, user.Up.Packets+user.Down.Packets
			if inKernel+inUserSpace != 1 || (inKernel == 0) != c.other {
				t.Errorf("%s: forwarded in the kernel %d, in user space %d", c.name, inKernel, inUserSpace)
			}
		}
	})
}

// Datagrams in fragments and in buffers of several segments are handled in user space.
func TestLargeBuffers(t *testing.T) {
	t.Parallel()
	eachIn(t, append(hookSetups(), xdpSetups()[0]), func(t *testing.T, w *topology, r *relayProcess, p *path) {
		large := bytes.Repeat([]byte("large..."), 1000)
		const segments = 8
		var ups, downs [][]byte
		for i := range segments {
			downs = append(downs, bytes.Repeat([]byte{byte(i)}, 100))
			ups = append(ups, frame(p.Channel, downs[i]))
		}
		before := r.do(t, "state")
		if got := p.up(large, timeout); !bytes.Equal(got, large) {
			t.Errorf("fragments up: got %d bytes", len(got))
		}
		if got := p.down(large, timeout); !bytes.Equal(got, frame(p.Channel, large)) {
			t.Errorf("fragments down: got %d bytes", len(got))
		}
		send := func(c *net.UDPConn, to netip.AddrPort, datagrams [][]byte) {
			segment := binary.NativeEndian.AppendUint16(nil, uint16(len(datagrams[0])))
			control := make([]byte, unix.CmsgSpace(2))
			header := unix.Cmsghdr{Level: unix.IPPROTO_UDP, Type: unix.UDP_SEGMENT}
			header.SetLen(unix.CmsgLen(2))
			_, _ = binary.Encode(control, binary.NativeEndian, header)
			copy(control[unix.CmsgLen(0):], segment)
			if _, _, err := c.WriteMsgUDPAddrPort(bytes.Join(datagrams, nil), control, to); err != nil {
				t.Fatal(err)
			}
		}
		send(p.client, p.Listener, ups)
		for i := range segments {
			if got := receive(p.peer, timeout); !bytes.Equal(got, downs[i]) {
				t.Errorf("segment %d up: got %d bytes", i, len(got))
			}
		}
		send(p.peer, p.Relay, downs)
		for i := range segments {
			if got := receive(p.client, timeout); !bytes.Equal(got, ups[i]) {
				t.Errorf("segment %d down: got %d bytes", i, len(got))
			}
		}
		after := r.do(t, "state")
		kernel, user := after.Kernel.minus(before.Kernel), after.User.minus(before.User)
		if kernel != (Counters{}) || user.Up.Packets != 1+segments || user.Down.Packets != 1+segments {
			t.Errorf("kernel %+v, user space %+v", kernel, user)
		}
	})
}

// Packets that do not fit into the MTU of their next interface or of their path are handled in user space, which
// fragments them. Shorter packets are forwarded in the kernel after user space has sent a packet of their length.
func TestSmallMTU(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		const mtu = 1300
		host, headers := 32, 20+8
		if p.Client.Addr().Is6() {
			host, headers = 128, 40+8
		}
		for _, name := range []string{"client", "peer"} {
			to, far := p.Client, w.client
			if name == "peer" {
				to, far = p.Peer, w.peer
			}
			send := func(n int) (got int, inKernel bool) {
				t.Helper()
				payload := media(n)
				before := r.do(t, "state")
				data := p.up
				if name == "client" {
					data = p.down
					payload = payload[:n-4]
				}
				got = len(data(payload, timeout))
				return got, r.do(t, "state").Kernel != before.Kernel
			}
			// await sends n bytes until the kernel forwards them, or stops forwarding them. After each change of the
			// network, the program learns the longest packet again. The notification of the change of the previous case
			// may arrive late.
			await := func(what string, n int, want bool) {
				t.Helper()
				got, inKernel := send(n)
				for late := time.Now().Add(timeout); got == n && inKernel != want && time.Now().Before(late); {
					got, inKernel = send(n)
				}
				if got != n || inKernel != want {
					t.Errorf("%s to the %s: %d bytes: got %d, in kernel: %t, want %t", what, name, n, got, inKernel, want)
				}
			}
			for _, c := range []struct {
				name       string
				begin, end func()
			}{
				{
					"interface", func() { w.relay.run(t, "ip link set %s mtu %d", name, mtu) },
					func() { w.relay.run(t, "ip link set %s mtu 1500", name) },
				},
				{
					"route", func() { w.relay.run(t, "ip route add %s/%d dev %s mtu %d", to.Addr(), host, name, mtu) },
					func() { w.relay.run(t, "ip route del %s/%d dev %s", to.Addr(), host, name) },
				},
				{"report of a router", func() {
					long := datagram{from: p.Listener, to: to, payload: frame(p.Channel, make([]byte, 1400))}
					if name == "peer" {
						long.from = p.Relay
					}
					far.inject(t, "eth0", tooBig(w.ethernet(t, far, name), to.Addr(), long, mtu))
				}, func() { w.relay.run(t, "ip route flush cache"); w.relay.run(t, "ip -6 route flush cache") }},
			} {
				if w.oneArm && c.name == "interface" {
					continue // the sender uses the same interface
				}
				p.warm(t, r)
				await(c.name+": before", usual, true)
				c.begin()
				fits := mtu - headers
				await(c.name, fits+1, false)
				p.warmUp(t, r, fits-4)
				await(c.name, fits, true)
				await(c.name, fits-1, true)
				if got, inKernel := send(fits + 1); got != fits+1 || inKernel {
					t.Errorf("%s to the %s: %d bytes: got %d, in kernel: %t", c.name, name, fits+1, got, inKernel)
				}
				c.end()
			}
		}
	})
}

// tooBig returns the report of a router that a packet is longer than the MTU of its next link.
func tooBig(ethernet []byte, router netip.Addr, long datagram, mtu uint32) []byte {
	long.ethernet = make([]byte, 12)
	packet := long.frame()[14:]
	six := router.Is6()
	header := []byte{3, 4, 0, 0, 0, 0, 0, 0}
	if six {
		header = []byte{2, 0, 0, 0, 0, 0, 0, 0}
	}
	binary.BigEndian.PutUint32(header[4:], mtu)
	message := append(header, packet[:128]...)
	to, from := long.from.Addr().AsSlice(), router.AsSlice()
	var pseudo uint64
	if six {
		pseudo = sum(from) + sum(to) + uint64(len(message)) + unix.IPPROTO_ICMPV6
	}
	binary.BigEndian.PutUint16(message[2:], ^fold(pseudo+sum(message)))
	var ip []byte
	if six {
		ip = binary.BigEndian.AppendUint32(ip, 6<<28)
		ip = binary.BigEndian.AppendUint16(ip, uint16(len(message)))
		ip = append(append(append(ip, unix.IPPROTO_ICMPV6, 64), from...), to...)
		return slices.Concat(ethernet, []byte{0x86, 0xdd}, ip, message)
	}
	ip = append(ip, 0x45, 0)
	ip = binary.BigEndian.AppendUint16(ip, uint16(20+len(message)))
	ip = append(append(append(ip, 0, 0, 0, 0, 64, unix.IPPROTO_ICMP, 0, 0), from...), to...)
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip)))
	return slices.Concat(ethernet, []byte{8, 0}, ip, message)
}

// The kernel decrements the TTL, and clears the differentiated services code point and the ECN bits, which are 0 in the
// packets of user space too (RFC 8656 §14: a fixed value).
func TestHeaderFields(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		for name, c := range map[string]struct {
			d    datagram
			from *space
			at   *capture
			to   *net.UDPConn
		}{
			"up": {
				datagram{
					from: p.Client, to: p.Listener, payload: frame(p.Channel, []byte("x")),
					ethernet: w.ethernet(t, w.client, "client"),
				},
				w.client, w.peer.capture(t), p.peer,
			},
			"down": {
				datagram{from: p.Peer, to: p.Relay, payload: []byte("four"), ethernet: w.ethernet(t, w.peer, "peer")},
				w.peer, w.client.capture(t), p.client,
			},
		} {
			for _, class := range []byte{0, 0xb8, 0x8b, 0xff} {
				c.d.class, c.d.ttl = class, 44
				before := r.do(t, "state")
				c.from.inject(t, "eth0", c.d.frame())
				_, _, got, err := c.at.take(1)
				if err != nil || got.class != 0 || got.ttl != 43 {
					t.Errorf("%s: class %#x: arrived with class %#x, TTL %d, %v", name, class, got.class, got.ttl, err)
				}
				receive(c.to, timeout)
				if after := r.do(t, "state"); after.Kernel == before.Kernel {
					t.Errorf("%s: not forwarded in the kernel: %s", name, fmt.Sprint(after))
				}
			}
		}
	})
}
