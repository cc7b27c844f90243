package datagram

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Steer makes the first sockets of a port, in the order in which they were bound, receive all datagrams. The number of
// these sockets is readers. The kernel selects one by the address and port of the client, so that one socket receives
// all datagrams of a client. Sockets that were bound later only send, and do not make receiving slower: the kernel
// finds the reuseport group by its first socket, and the program selects the member. (A connected socket would leave
// the group, and the kernel searches connected sockets one by one.)
//
// The program is classic BPF on the reuseport group (SO_ATTACH_REUSEPORT_CBPF, Linux 4.5). It needs no capability.
// Sandboxes with a network stack of their own may not support it.
func (s *Sender) Steer(readers int) error {
	program, err := bpf.Assemble(steering(uint32(readers)))
	if err != nil {
		return fmt.Errorf("assemble steering program: %w", err)
	}
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return s.Use(func(fd int) error {
		fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &fprog)
		if err != nil {
			return fmt.Errorf("attach steering program: %w", err)
		}
		return nil
	})
}

// network is the offset at which a classic BPF program finds the IP header (SKF_NET_OFF).
const network = 0xFFF00000

// Offsets of the fields that the program reads.
const (
	source4     = network + 12
	source6Low  = network + 8 + 12 // the last 32 bits of the address, because the others are equal within a network
	nextHeader6 = network + 6
	udp6        = network + 40
	protocolUDP = 17
	etherIPv6   = 0x86DD
)

// steering returns the BPF program that Steer installs. The result of the program is the index of the receiving socket:
// a hash of source address and source port modulo the number of readers. An IPv6 packet with extension headers is
// hashed by its address alone.
func steering(readers uint32) []bpf.Instruction {
	const golden = 0x9E3779B1 // 2³² divided by the golden ratio, for multiplicative hashing (Knuth, TAOCP 6.4)
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherIPv6, SkipTrue: 6},
		// IPv4: X is the length of the header.
		bpf.LoadAbsolute{Off: source4, Size: 4},
		bpf.StoreScratch{Src: bpf.RegA},
		bpf.LoadMemShift{Off: network},
		bpf.LoadIndirect{Off: network, Size: 2},
		bpf.TAX{},
		bpf.Jump{Skip: 7},
		// IPv6.
		bpf.LoadAbsolute{Off: source6Low, Size: 4},
		bpf.StoreScratch{Src: bpf.RegA},
		bpf.LoadConstant{Dst: bpf.RegX, Val: 0},
		bpf.LoadAbsolute{Off: nextHeader6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 2},
		bpf.LoadAbsolute{Off: udp6, Size: 2},
		bpf.TAX{},
		// Both: the address is in the scratch memory, the port in X.
		bpf.LoadScratch{Dst: bpf.RegA},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: golden},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 16},
		bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: readers},
		bpf.RetA{},
	}
}
