package offload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// modelBinding is a binding of the model, with the state that the programs store for it.
type modelBinding struct {
	relayBinding
	state string

	dead, forbidden    bool // the binding has expired or is of an old generation; the permission has expired
	clientIf, peerIf   bool // known
	candidates         bool // both interfaces are candidates only
	clientMax, peerMax int
	relayKnown         bool
	otherSlot          func(*slot) // the keys lead to this slot of another binding
}

const anyMax = 2500

// modelBindings are bindings in all states, for both address families.
func modelBindings() (all []modelBinding) {
	for _, v6 := range []bool{false, true} {
		for _, change := range []func(*modelBinding){
			func(b *modelBinding) { b.state = "live" },
			func(b *modelBinding) { b.state, b.dead = "expired", true },
			func(b *modelBinding) { b.state, b.dead = "of an old generation", true },
			func(b *modelBinding) { b.state, b.forbidden = "without a permission", true },
			func(b *modelBinding) { b.state, b.clientIf = "unknown way to the client", false },
			func(b *modelBinding) { b.state, b.peerIf = "unknown way to the peer", false },
			func(b *modelBinding) {
				b.state, b.clientIf, b.peerIf, b.candidates = "candidates of interfaces", false, false, true
			},
			func(b *modelBinding) { b.state, b.clientMax, b.peerMax = "small MTUs", 200, 180 },
			func(b *modelBinding) { b.state, b.relayKnown, b.peerIf = "unknown address of the relay", false, false },
			func(b *modelBinding) { b.otherSlot = func(s *slot) { s.client, s.peer = [16]byte{1}, [16]byte{2} } },
			func(b *modelBinding) {
				b.otherSlot = func(s *slot) { s.clientPort, s.peerPort = [2]byte{1}, [2]byte{2} }
			},
			func(b *modelBinding) {
				b.otherSlot = func(s *slot) { s.listenerPort, s.relayPort = [2]byte{1}, [2]byte{2} }
			},
			func(b *modelBinding) { b.otherSlot = func(s *slot) { s.channel, s.relay = [2]byte{0x40}, [16]byte{2} } },
		} {
			b := modelBinding{
				relayBinding: binding(v6), clientIf: true, peerIf: true, clientMax: anyMax, peerMax: anyMax, relayKnown: true,
			}
			n := uint16(len(all))
			port := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()+n) }
			b.Client, b.Peer, b.Relay, b.Channel = port(b.Client), port(b.Peer), port(b.Relay), b.Channel+n
			change(&b)
			all = append(all, b)
		}
	}
	return all
}

// model is a second implementation of the ingress program and of the XDP program. It also runs the real programs with
// the same bindings.
type model struct {
	bindings []modelBinding
	program  *ebpf.Program
	xdp      *ebpf.Program
	table    *table
	slots    []slot // before each packet
	out      []byte
}

func newModel(t testing.TB) *model {
	t.Helper()
	m := &model{bindings: modelBindings(), out: make([]byte, 4096)}
	f := opened(t, len(m.bindings))
	g, old := f.NewGroup(), f.NewGroup()
	m.program, m.table = f.kernel.collection.Programs["relay_in"], f.table
	m.xdp = f.kernel.collection.Programs["relay_xdp"]
	for i, b := range m.bindings {
		end := time.Now().Add(time.Hour)
		e := Entry{
			Client: b.Client, Listener: b.Listener, Channel: b.Channel, Peer: b.Peer, Relay: b.Relay, Until: end,
			Permitted: end, Prolong: time.Minute,
		}
		in := g
		switch {
		case b.state == "of an old generation":
			in = old
		case b.state == "expired":
			e.Until = time.Now().Add(-time.Second)
		case b.forbidden:
			e.Permitted = time.Now().Add(-time.Second)
		case !b.relayKnown:
			e.Relay = netip.AddrPortFrom(netip.Addr{}, b.Relay.Port())
		}
		if !in.Generation().Arm(new(Binding), e) {
			t.Fatalf("%s: not armed", b.state)
		}
		s := &f.table.slots[i]
		s.clientMax, s.peerMax = uint32(b.clientMax), uint32(b.peerMax)
		if b.clientIf {
			s.clientIf = 1
		}
		if b.peerIf {
			s.peerIf = 1
		}
		if b.candidates {
			s.clientIf, s.peerIf = candidate|1, candidate|1
		}
		if b.otherSlot != nil {
			b.otherSlot(s)
		}
	}
	old.Invalidate()
	m.slots = append(m.slots, f.table.slots...)
	return m
}

// forwarded is the packet that the program makes from a packet. ok is false if the program passes the packet to user
// space unchanged.
type forwarded struct {
	ok       bool
	from, to netip.AddrPort
	payload  []byte
	binding  modelBinding
}

const ethernetHeader, udpHeader, channelHeader = 14, 8, 4

// receive handles a frame as the program does, and changes the slots as the program does.
func (m *model) receive(ethernet []byte, slots []slot) forwarded {
	var none forwarded
	if !bytes.Equal(ethernet[:6], make([]byte, 6)) { // to another host
		return none
	}
	ip := ethernet[ethernetHeader:]
	header := 20
	switch binary.BigEndian.Uint16(ethernet[12:]) {
	case unix.ETH_P_IP:
		if len(ip) < header+udpHeader+channelHeader || ip[0] != 0x45 || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return none
		}
		if ip[9] == unix.IPPROTO_ICMP && ip[20] == 3 && ip[21] == 4 {
			m.tooBig(ip[header+8:], slots)
			return none
		}
		if ip[9] != unix.IPPROTO_UDP || ip[8] < 2 || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) ||
			fold(sum(ip[:header])) != 0xffff {
			return none
		}
	case unix.ETH_P_IPV6:
		header = 40
		if len(ip) < header+udpHeader+channelHeader || ip[0]>>4 != 6 {
			return none
		}
		if ip[6] == unix.IPPROTO_ICMPV6 && ip[header] == 2 {
			m.tooBig(ip[header+8:], slots)
			return none
		}
		if ip[6] != unix.IPPROTO_UDP || ip[7] < 2 || int(binary.BigEndian.Uint16(ip[4:])) != len(ip)-header ||
			binary.BigEndian.Uint16(ip[header+6:]) == 0 {
			return none
		}
	default:
		return none
	}
	udp := ip[header:]
	if int(binary.BigEndian.Uint16(udp[4:])) != len(udp) || len(udp) > 2040 {
		return none
	}
	from, to := addresses(ip)
	payload := udp[udpHeader:]
	number := binary.BigEndian.Uint16(payload)
	if payload[0]&0xc0 == 0x40 && int(binary.BigEndian.Uint16(payload[2:])) == len(payload)-channelHeader {
		for i, b := range m.bindings {
			if b.dead || from != b.Client || to.Port() != b.Listener.Port() || number != b.Channel {
				continue
			}
			data := payload[channelHeader:]
			if to != b.Listener || b.otherSlot != nil || !b.peerIf || header+len(udp)-channelHeader > b.peerMax ||
				len(data) > 0 && data[0] <= 3 {
				return none
			}
			s := &slots[i]
			s.upPackets++
			s.upBytes += uint64(len(data))
			return forwarded{true, b.Relay, b.Peer, data, b}
		}
	}
	for i, b := range m.bindings {
		if b.dead || from != b.Peer || to.Port() != b.Relay.Port() {
			continue
		}
		if b.forbidden || !b.relayKnown || to != b.Relay || b.otherSlot != nil || !b.clientIf ||
			header+len(udp)+channelHeader > b.clientMax {
			return none
		}
		slots[i].downPackets++
		slots[i].downBytes += uint64(len(payload))
		return forwarded{true, b.Listener, b.Client, frame(b.Channel, payload), b}
	}
	return none
}

// addresses returns source and destination of a UDP packet.
func addresses(ip []byte) (from, to netip.AddrPort) {
	at, size, header := 12, 4, 20
	if ip[0]>>4 == 6 {
		at, size, header = 8, 16, 40
	}
	a, _ := netip.AddrFromSlice(ip[at : at+size])
	b, _ := netip.AddrFromSlice(ip[at+size : at+2*size])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(ip[header:])),
		netip.AddrPortFrom(b, binary.BigEndian.Uint16(ip[header+2:]))
}

// tooBig handles a packet that is quoted in the report of a router.
func (m *model) tooBig(ip []byte, slots []slot) {
	header := 20
	if len(ip) > 0 && ip[0]>>4 == 6 {
		header = 40
	}
	if len(ip) < header+udpHeader {
		return
	}
	if header == 20 && (ip[0] != 0x45 || ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(ip[6:])&0x1fff != 0) ||
		header == 40 && ip[6] != unix.IPPROTO_UDP {
		return
	}
	from, to := addresses(ip)
	for i, b := range m.bindings {
		if !b.dead && to == b.Peer && from.Port() == b.Relay.Port() {
			slots[i].peerMax = 0
			return
		}
	}
	if payload := ip[header+udpHeader:]; len(payload) >= channelHeader {
		for i, b := range m.bindings {
			if !b.dead && to == b.Client && from.Port() == b.Listener.Port() &&
				binary.BigEndian.Uint16(payload) == b.Channel {
				slots[i].clientMax = 0
			}
		}
	}
}

// nextHost is the Ethernet address of all clients and peers. The address of the relay is zero.
var nextHost = [6]byte{2, 0, 0, 0, 0, 9}

// compareXDP runs the XDP program on a frame, as compare runs the ingress program.
func (m *model) compareXDP(frame []byte) error {
	slots := m.table.slots
	o := &ebpf.RunOptions{Data: frame, DataOut: m.out}
	var verdict, tick = uint32(0), uint64(0)
	for now := ticks(); tick != now; now = ticks() { // until the whole run is in one tick
		tick = now
		var to [8]byte
		copy(to[:], nextHost[:])
		h := hop{binary.NativeEndian.Uint64(to[:]) | tick<<48, tick << 48}
		copy(slots, m.slots)
		for i := range slots {
			slots[i].clientHop, slots[i].peerHop = h, h
		}
		var err error
		o.DataOut = m.out
		if verdict, err = m.xdp.Run(o); err != nil {
			return err
		}
	}
	want := append([]slot(nil), m.slots...)
	f := m.receive(frame, want)
	if f.ok = f.ok && f.binding.clientIf && f.binding.peerIf && !isPartial(frame); !f.ok {
		copy(want, m.slots) // the XDP program has changed no slot, even for the report of a router
	}
	if err := m.compareSlots(want, f, func(s *slot) { s.clientHop, s.peerHop = hop{}, hop{} }); err != nil {
		return err
	}
	const pass, transmit = 2, 3
	switch {
	case !f.ok && (verdict != pass || !bytes.Equal(o.DataOut, frame)):
		return fmt.Errorf("XDP: verdict %#x, want that the packet is passed on unchanged", verdict)
	case !f.ok:
		return nil
	case verdict != transmit:
		return fmt.Errorf("XDP: verdict %#x, want that the packet is forwarded: %+v", verdict, f)
	}
	return f.check(frame, o.DataOut, append(nextHost[:], 0, 0, 0, 0, 0, 0))
}

// ticks returns TICK of bpf/turn.c, by the clock of the programs.
func ticks() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &t)
	return uint64(t.Nano()) >> 30
}

// isPartial reports whether the checksum of a UDP packet covers its pseudo header only.
func isPartial(frame []byte) bool {
	ip := frame[ethernetHeader:]
	udp, pseudo := ip[20:], ip[12:20]
	if ip[0]>>4 == 6 {
		udp, pseudo = ip[40:], ip[8:40]
	}
	return binary.BigEndian.Uint16(udp[6:]) == fold(sum(pseudo)+unix.IPPROTO_UDP+sum(udp[4:6]))
}

// compareSlots compares the slots with the slots of the model, except the fields that ignored changes.
func (m *model) compareSlots(want []slot, f forwarded, ignored func(*slot)) error {
	for i := range want {
		got := m.table.slots[i]
		ignored(&got)
		if f.ok && got.permitted > want[i].permitted && got.upPackets > m.slots[i].upPackets {
			got.permitted = want[i].permitted // moved
		}
		if m.bindings[i].dead && got.until == 0 {
			got.until = want[i].until // the sweep has ended the binding meanwhile
		}
		if got != want[i] {
			return fmt.Errorf("slot %q is %+v, want %+v", m.bindings[i].state, got, want[i])
		}
	}
	return nil
}

// compare runs the ingress program on a frame, and compares verdict, packet and slots with the model.
func (m *model) compare(frame []byte) error {
	if err := m.compareXDP(frame); err != nil {
		return err
	}
	slots := m.table.slots
	copy(slots, m.slots)
	o := &ebpf.RunOptions{Data: frame, DataOut: m.out}
	verdict, err := m.program.Run(o)
	if errors.Is(err, unix.EINVAL) && len(frame) < ethernetHeader+40 {
		return nil // BPF_PROG_TEST_RUN rejects incomplete IPv6 headers
	}
	if err != nil {
		return err
	}
	want := append([]slot(nil), m.slots...)
	f := m.receive(frame, want)
	if err := m.compareSlots(want, f, func(*slot) {}); err != nil {
		return err
	}
	const pass, redirect = 0xffffffff, 7
	switch {
	case !f.ok && (verdict != pass || !bytes.Equal(o.DataOut, frame)):
		return fmt.Errorf("verdict %#x, want that the packet is passed on unchanged", verdict)
	case !f.ok:
		return nil
	case verdict != redirect:
		return fmt.Errorf("verdict %#x, want that the packet is forwarded: %+v", verdict, f)
	}
	return f.check(frame, o.DataOut, frame[:12])
}

// check compares a packet that a program has made with the expected packet, which has the given Ethernet addresses.
func (f *forwarded) check(frame, got, ethernet []byte) error {
	want := datagram{from: f.from, to: f.to, payload: f.payload, ethernet: ethernet}.frame()
	if len(got) != len(want) {
		return fmt.Errorf("a frame of %d bytes, want %d", len(got), len(want))
	}
	ip, header, ttl, check := want[ethernetHeader:], 20, 8, 20+6
	if f.from.Addr().Is4() {
		copy(ip[4:8], frame[ethernetHeader+4:]) // identification and flags
	} else {
		header, ttl, check = 40, 7, 40+6
	}
	ip[ttl] = frame[ethernetHeader+ttl] - 1
	if header == 20 && fold(sum(got[ethernetHeader:][:header])) != 0xffff {
		return fmt.Errorf("wrong header checksum: %x", got)
	}
	// A wrong checksum stays wrong by the same difference. A packet without a checksum stays without one.
	before := binary.BigEndian.Uint16(frame[ethernetHeader+check:])
	after := binary.BigEndian.Uint16(got[ethernetHeader+check:])
	if (before == 0) != (after == 0) || before != 0 && wrongBy(frame) != wrongBy(got) {
		return fmt.Errorf("checksum %#x, and %#x before: %x", after, before, got)
	}
	got = bytes.Clone(got)
	for _, b := range [][]byte{got, want} {
		clear(b[ethernetHeader+check:][:2])
		if header == 20 {
			clear(b[ethernetHeader+10:][:2])
		}
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("frame\n%x, want\n%x", got, want)
	}
	return nil
}

// wrongBy returns the sum over a UDP packet modulo 0xffff, which is 0 if its checksum is right.
func wrongBy(frame []byte) uint16 {
	ip := frame[ethernetHeader:]
	udp, pseudo := ip[20:], ip[12:20]
	if ip[0]>>4 == 6 {
		udp, pseudo = ip[40:], ip[8:40]
	}
	return fold(sum(pseudo)+unix.IPPROTO_UDP+uint64(len(udp))+sum(udp)) % 0xffff
}

// frameFrom makes a frame from random numbers, usually a frame of a binding with some changed fields and bytes.
func (m *model) frameFrom(seed uint64, changes []byte) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	b := m.bindings[r.IntN(len(m.bindings))]
	payload := make([]byte, []int{r.IntN(8), r.IntN(64), r.IntN(300), r.IntN(1600), 2020 + r.IntN(20)}[r.IntN(5)])
	for i := range payload {
		payload[i] = byte(r.Uint32())
	}
	d := datagram{from: b.Peer, to: b.Relay, payload: payload, ethernet: make([]byte, 12), class: byte(r.Uint32())}
	if len(payload) > 0 && r.IntN(8) == 0 {
		payload[0] %= 5 // usually a STUN message
	}
	kind := r.IntN(8)
	if kind < 4 {
		d.from, d.to, d.payload = b.Client, b.Listener, frame(b.Channel, payload)
	}
	for range r.IntN(3) { // fields
		switch r.IntN(12) {
		case 0:
			d.ttl = byte(r.IntN(4))
		case 1:
			d.noChecksum = true
		case 2:
			d.lengthOfUDP = r.IntN(9) - 4
		case 3:
			d.lengthOfIP = r.IntN(9) - 4
		case 4:
			d.trailer = r.IntN(5)
		case 5:
			d.padding = r.IntN(5)
		case 6:
			d.fragment = uint16(r.Uint32())
		case 7:
			d.fragment = 0x4000
		case 8:
			d.wrongHeader = true
		case 9:
			other := m.bindings[r.IntN(len(m.bindings))]
			if other.Client.Addr().Is4() == b.Client.Addr().Is4() {
				d.from, d.to = []netip.AddrPort{other.Client, d.from}[r.IntN(2)], []netip.AddrPort{other.Relay, d.to}[r.IntN(2)]
			}
		case 10:
			d.payload = d.payload[:r.IntN(len(d.payload)+1)]
		case 11:
			if d.options = make([]byte, 8*r.IntN(3)); len(d.options) > 0 {
				d.options[0], d.options[1] = unix.IPPROTO_UDP, byte(len(d.options)/8-1)
			}
		}
	}
	out := d.frame()
	if kind == 7 { // the report of a router about a packet to the client or the peer
		d.from, d.to = d.to, d.from
		if r.IntN(2) == 0 {
			d.from, d.to, d.payload = b.Listener, b.Client, frame(b.Channel, payload)
		}
		d.payload = append(d.payload, make([]byte, 128)...)
		out = tooBig(make([]byte, 12), d.from.Addr(), d, 1300)
	}
	if len(changes) == 0 {
		return out
	}
	for ; len(changes) > 1; changes = changes[2:] { // bytes of the headers
		out[int(changes[0])%min(len(out), 80)] ^= changes[1]
	}
	if len(changes) == 1 { // the length
		out = append(out, make([]byte, 16)...)[:max(ethernetHeader+20, len(out)+16-int(changes[0])%32)]
	}
	if ip := out[ethernetHeader:]; r.IntN(4) > 0 && out[12] == 8 && ip[0] == 0x45 {
		clear(ip[10:12])
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip[:20])))
	}
	return out
}

// The programs and a second implementation of them have the same verdicts, packets and counters for random frames.
func FuzzProgram(f *testing.F) {
	m := newModel(f)
	for seed := range uint64(200) {
		f.Add(seed, []byte(nil))
		f.Add(seed, []byte{byte(seed)})
		f.Add(seed, []byte{byte(14 + seed%60), 1})
	}
	f.Fuzz(func(t *testing.T, seed uint64, changes []byte) {
		frame := m.frameFrom(seed, changes)
		if err := m.compare(frame); err != nil {
			t.Errorf("%v\nof frame %x", err, frame)
		}
	})
}

// The same comparison for 20,000 frames. go test runs a fuzz target with its seeds only.
func TestProgramAgainstModel(t *testing.T) {
	m := newModel(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	count := map[bool]int{}
	for range 20_000 {
		changes := make([]byte, r.IntN(5)*r.IntN(2))
		for i := range changes {
			changes[i] = byte(r.Uint32())
		}
		frame := m.frameFrom(r.Uint64(), changes)
		if err := m.compare(frame); err != nil {
			t.Fatalf("seed %d: %v\nof frame %x", seed, err, frame)
		}
		count[m.receive(frame, append([]slot(nil), m.slots...)).ok]++
	}
	if count[true] < 500 {
		t.Error("too few frames are forwarded")
	}
	t.Logf("%d frames are forwarded, %d are passed on", count[true], count[false])
}
