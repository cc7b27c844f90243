package offload

import (
	"bytes"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testroot"
)

// The layouts of slots and keys equal the layouts in the BPF programs.
func TestLayout(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	for name, ours := range map[string]reflect.Type{
		"slot": reflect.TypeFor[slot](), "key": reflect.TypeFor[key](), "down_key": reflect.TypeFor[downKey](),
	} {
		var theirs *btf.Struct
		if err := spec.Types.TypeByName(name, &theirs); err != nil {
			t.Fatal(err)
		}
		if uint32(ours.Size()) != theirs.Size {
			t.Errorf("struct %s has %d bytes, want %d", name, ours.Size(), theirs.Size)
		}
		for _, m := range theirs.Members {
			if strings.HasPrefix(m.Name, "unused") || m.Name == "spare" || m.Name == "zero" {
				continue
			}
			f, ok := ours.FieldByNameFunc(
				func(n string) bool { return strings.EqualFold(n, strings.ReplaceAll(m.Name, "_", "")) },
			)
			size, err := btf.Sizeof(m.Type)
			if !ok || err != nil || uint32(f.Offset) != m.Offset.Bytes() || int(f.Type.Size()) != size {
				t.Errorf(
					"struct %s: %s is at %d with %d bytes, want %d with %d",
					name,
					m.Name,
					f.Offset,
					f.Type.Size(),
					m.Offset.Bytes(),
					size,
				)
			}
		}
	}
}

// The programs at the traffic control hooks call only functions of Linux 5.11, so that Linux 5.15 loads them with
// CAP_PERFMON. The XDP program calls only functions of Linux 5.18. The numbers of functions increase with the releases.
func TestProgramsCallOnlyFunctionsOfSupportedKernels(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for name, p := range spec.Programs {
		for _, i := range p.Instructions {
			if !i.IsBuiltinCall() {
				continue
			}
			newest := asm.FnKtimeGetCoarseNs
			if p.Type == ebpf.XDP {
				newest = asm.FnXdpGetBuffLen
			}
			if f := asm.BuiltinFunc(i.Constant); f > newest {
				t.Errorf("%s calls %s", name, f)
			}
			calls++
		}
	}
	if calls == 0 {
		t.Error("the programs call nothing")
	}
}

// opened returns an Offload without interfaces.
func opened(t testing.TB, slots int) *Offload {
	t.Helper()
	testroot.Need(t, "BPF programs")
	f := Open(Options{Engine: EngineXDP, Interfaces: []string{"none0"}, MaxBindings: slots})
	if f.table == nil {
		t.Fatal(f.Status().Reason)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func entry() Entry {
	b := binding(false)
	return Entry{
		Client: b.Client, Listener: b.Listener, Channel: b.Channel, Peer: b.Peer, Relay: b.Relay,
		Until: time.Now().Add(time.Minute), Permitted: time.Now().Add(time.Minute), Prolong: time.Minute,
	}
}

// All methods are valid without a kernel path.
func TestNilOffloadForwardsNothing(t *testing.T) {
	var none *Offload
	for _, f := range []*Offload{none, Open(Options{Engine: EngineNone})} {
		g := f.NewGroup()
		g.Invalidate()
		var b Binding
		if now := g.Generation(); !now.IsZero() || now.Arm(&b, Entry{}) || b.Live(now) || f.Status().Mechanism != None {
			t.Error("something is armed")
		}
		b.Renew(time.Now(), time.Now())
		b.Fold()
		b.End()
		f.Fold()
		g.Close()
		if err := f.Close(); err != nil || !b.Permitted().IsZero() {
			t.Error(err)
		}
	}
}

// An entry that is armed with an old generation has already ended. An entry of a closed group is not armed.
func TestGenerations(t *testing.T) {
	f := opened(t, 10)
	g := f.NewGroup()
	var b Binding
	old := g.Generation()
	g.Invalidate()
	if !old.Arm(&b, entry()) || b.Live(g.Generation()) {
		t.Error("an entry of an old generation is live")
	}
	if !g.Generation().Arm(&b, entry()) || !b.Live(g.Generation()) || f.Status().Bindings != 1 {
		t.Error("the entry cannot be armed again")
	}
	late := g.Generation()
	g.Close()
	other := f.NewGroup()
	if other.index != g.index || late.Arm(new(Binding), entry()) || b.Live(other.Generation()) ||
		!g.Generation().IsZero() {
		t.Error("a closed group has a live entry")
	}
	var groups []*Group
	for next := f.NewGroup(); next != nil; next = f.NewGroup() {
		groups = append(groups, next)
	}
	if len(groups) != groupCount-2 {
		t.Errorf("%d groups", len(groups))
	}
}

// The end of a binding does not remove the keys of a later binding.
func TestKeysOfALaterBinding(t *testing.T) {
	f := opened(t, 10)
	g := f.NewGroup()
	var first, second Binding
	e := entry()
	g.Generation().Arm(&first, e)
	e.Peer = netip.MustParseAddrPort("10.77.2.2:50001")
	g.Generation().Arm(&second, e)
	r := second.record.Load()
	first.End()
	var index uint32
	if err := f.table.up.Lookup(&r.key, &index); err != nil || index != r.index {
		t.Errorf("the client's key leads to slot %d, %v, want %d", index, err, r.index)
	}
	second.End()
	for _, m := range []*ebpf.Map{f.table.up, f.table.down} {
		if m.Iterate().Next(new(key), &index) {
			t.Errorf("%s has keys", m)
		}
	}
}

// Entries that the programs do not support stay in user space.
func TestUnsupportedEntries(t *testing.T) {
	f := opened(t, 10)
	g := f.NewGroup()
	for name, change := range map[string]func(*Entry){
		"IPv4 to IPv6":         func(e *Entry) { e.Peer = at("[2001:db8::1]:1") },
		"IPv6 listener":        func(e *Entry) { e.Listener = at("[2001:db8::1]:1") },
		"IPv6 relay":           func(e *Entry) { e.Relay = at("[2001:db8::1]:1") },
		"unspecified listener": func(e *Entry) { e.Listener = at("0.0.0.0:3478") },
		"no listener":          func(e *Entry) { e.Listener = netip.AddrPort{} },
		"zone": func(e *Entry) {
			e.Client, e.Listener, e.Peer, e.Relay = at("[fe80::1%eth0]:1"), at("[::1]:1"), at("[::2]:1"), at("[::3]:1")
		},
	} {
		e := entry()
		change(&e)
		if g.Generation().Arm(new(Binding), e) {
			t.Errorf("%s: armed", name)
		}
	}
	for name, change := range map[string]func(*Entry){
		"unspecified relay": func(e *Entry) { e.Relay = at("0.0.0.0:5000") },
		"IPv4-mapped":       func(e *Entry) { e.Client = at("[::ffff:10.77.1.2]:40000") },
	} {
		e := entry()
		change(&e)
		if !g.Generation().Arm(new(Binding), e) {
			t.Errorf("%s: not armed", name)
		}
	}
}

// Counters are folded once. Packets in progress at the end are folded when the slot is released.
func TestFold(t *testing.T) {
	f := opened(t, 10)
	g := f.NewGroup()
	var total Counters
	e := entry()
	e.Count = func(c Counters) {
		total.Up.Packets += c.Up.Packets
		total.Down.Bytes += c.Down.Bytes
	}
	var b Binding
	g.Generation().Arm(&b, e)
	r := b.record.Load()
	forward := func(n uint64) { r.slot.upPackets, r.slot.downBytes = r.slot.upPackets+n, r.slot.downBytes+10*n }
	forward(1)
	b.Fold()
	b.Fold()
	forward(2)
	f.Fold()
	forward(4)
	b.End()
	forward(8)
	f.table.sweep(time.Now().Add(rest - 100*time.Millisecond))
	if f.table.records[r.index].Load() != r {
		t.Error("the slot has not rested")
	}
	f.table.sweep(time.Now().Add(rest))
	forward(16) // this counts for the next binding
	r.fold()
	f.Fold()
	if total.Up.Packets != 15 || total.Down.Bytes != 150 {
		t.Errorf("%+v", total)
	}
}

// An expired channel of a live session frees its slot, also if its channel is never bound again.
func TestExpiredEntriesFreeTheirSlots(t *testing.T) {
	f := opened(t, 1)
	g := f.NewGroup()
	var expired, next Binding
	e, now := entry(), time.Now()
	counted := 0
	e.Count = func(c Counters) { counted += int(c.Up.Packets) }
	if !g.Generation().Arm(&expired, e) {
		t.Fatal("not armed")
	}
	f.table.sweep(e.Until.Add(-time.Second))
	if s := f.Status(); s.Bindings != 1 || !expired.Live(g.Generation()) {
		t.Errorf("before the end: %+v", s)
	}
	expired.record.Load().slot.upPackets = 3
	f.table.sweep(e.Until.Add(expireInterval))
	if s := f.Status(); s.Bindings != 0 || expired.Live(g.Generation()) || counted != 3 {
		t.Errorf("after the end: %+v, counted %d packets", s, counted)
	}
	other := entry()
	other.Channel++
	if !g.Generation().Arm(&next, other) {
		t.Error("the slot is not free")
	}
	e.Until = now.Add(time.Hour)
	if expired.Renew(e.Until, e.Until); expired.Live(g.Generation()) || !next.Live(g.Generation()) {
		t.Error("the expired binding has changed the slot of the next one")
	}
}

// While all bindings are in use, there is a log message at most once a minute.
func TestExhaustionIsLogged(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var e exhaustion
	start := time.Now()
	for second, attempts := range []uint64{0: 0, 1: 1, 2: 1, 3: 4, 60: 9, 61: 9, 121: 9, 122: 10} {
		e.log(log, max(attempts, e.counted), 100, start.Add(time.Duration(second)*time.Second))
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		_, counts, _ := strings.Cut(strings.TrimSpace(line), " bindings=100 ")
		got = append(got, counts)
	}
	if want := []string{"attempts=1", "attempts=8", "attempts=1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q:\n%s", got, want, out.String())
	}
}

// Bindings may be used after Close.
func TestUseAfterClose(t *testing.T) {
	f := opened(t, 10)
	g := f.NewGroup()
	var b Binding
	g.Generation().Arm(&b, entry())
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	g.Invalidate()
	b.Renew(time.Now().Add(time.Hour), time.Now().Add(time.Hour))
	if b.Live(g.Generation()) || g.Generation().Arm(new(Binding), entry()) {
		t.Error("an entry is live after Close")
	}
	b.Fold()
	b.End()
	f.Fold()
	if s := f.Status(); s.Mechanism != None || s.Bindings != 0 {
		t.Errorf("%+v", s)
	}
}
