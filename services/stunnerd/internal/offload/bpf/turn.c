// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
//
// Forwards TURN ChannelData (RFC 8656 §12.4) at the traffic control hooks of network interfaces, and at their XDP hook.
//
//   relay_in   ingress: forwards the packets of live bindings, in both directions
//   relay_out  egress: records how stunnerd itself reaches clients and peers: interface, source address, packet size
//   relay_xdp  before relay_in: forwards those packets that leave by the interface at which they arrive
//
// A packet that is not exactly understood is passed to stunnerd, unchanged. Package offload of stunnerd writes the
// bindings, and repeats the layouts of struct slot and struct key.
//
// The programs load with CAP_BPF and CAP_NET_ADMIN. Without CAP_PERFMON the verifier rejects pointers that depend on a
// condition, and adds a speculation barrier to the first write to each stack slot. So directions and address families
// are separate instances of inlined functions, and the key is built in the memory of a map.
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// PASS lets the other programs of the hook, and then the network stack, have the packet. TCX_NEXT has the same value.
#define PASS TC_ACT_UNSPEC
// FORWARDED is the tc_index of a packet that relay_in has redirected. In contrast to a mark, no routing rule reads it.
#define FORWARDED 0x5354
// RENEW is FORWARDED of a packet from which relay_out records the Ethernet header again.
#define RENEW 0x5355
// SEEN is the tc_index of a packet of stunnerd from its first interface on. It stays in the packet: its low byte is 0,
// because the queueing discipline gred reads the low bits, and Cilium too.
#define SEEN 0x5300
// CANDIDATE is the bit of an interface of a slot that relay_out has not confirmed.
#define CANDIDATE 0x80000000
#define UDP_HEADER ((__u32)sizeof(struct udphdr))
#define ICMP_HEADER 8
// FRAG_NEEDED are type and code of an ICMP message (RFC 792), TOO_BIG is the type of an ICMPv6 message (RFC 4443 §3.2).
#define FRAG_NEEDED 0x0304
#define TOO_BIG 2
// SAFE4 and SAFE6 are lengths of IP packets that Linux fragments for no path: the smallest path MTU that it learns for IPv4
// (sysctl net.ipv4.route.min_pmtu), and the smallest MTU of IPv6 (RFC 8200 §5).
#define SAFE4 552
#define SAFE6 1280
#define CHANNEL_HEADER 4
// STUN_MAX is the largest first byte of a STUN message (RFC 7983 §7). stunnerd stores connectivity checks of clients,
// so it must see them.
#define STUN_MAX 3
// MAX_DATAGRAM is the longest UDP datagram that is forwarded, its header included.
#define MAX_DATAGRAM 2040
#define SCRATCH 2048
#define SECOND 1000000000ULL

// AGAIN makes the optimizer forget what it knows of memory, so that it loads values again and does not keep them on the
// stack.
#define AGAIN() asm volatile("" : : : "memory")
// SEPARATE keeps the optimizer from merging the ends of two directions, and their pointers.
#define SEPARATE(n) asm volatile("" : : "i"(n) : "memory")

// POSITIVE is n, with bounds for the verifier: before Linux 6.8 it does not derive from n != 0 that n is at least 1.
#define POSITIVE(n) ((((n) - 1) & (SCRATCH - 1)) + 1)

#define ALWAYS static __always_inline

// Addresses and ports are in network byte order. An IPv4 address is an IPv4-mapped IPv6 address.
struct address { __u32 word[4]; };

// struct key is the key of the map up: the client, the port of the listener and the channel. Without the last word it
// is the key of the map down: the peer and the port of the relay.
struct key { struct address remote; __be16 remote_port, local_port, channel, zero; };
struct down_key { struct address remote; __be16 remote_port, local_port; };

// struct hop has the Ethernet addresses of the packets to a client or a peer, as relay_out has seen them: the next host,
// and the interface itself. The last two bytes of each word are the TICK in which it was written. So a reader sees that
// two words do not belong together, except if the addresses change twice in a second.
struct hop { __u64 to, from; };
#define ADDRESS(word) ((word) & 0xffffffffffff)
#define TICK(ns) ((ns) >> 30 << 48) // changes every 1.07 s

// struct slot is one binding. Each direction counts in a cache line of its own.
struct slot {
	__u64 until;     // CLOCK_MONOTONIC, ns: the binding is dead from then on
	__u64 permitted; // CLOCK_MONOTONIC, ns: the packets of the peer are passed to stunnerd from then on
	__u64 prolong;   // ns: a packet of the client moves permitted to now + prolong
	__u32 generation, group; // the binding is dead unless generations[group] is generation
	// The interfaces towards client and peer, which relay_out confirms once, and the longest IP packets that stunnerd
	// has sent to them unfragmented, at least SAFE4 or SAFE6. Longer packets are passed to stunnerd, because the MTU of
	// their path may be smaller. Those that follow may overtake them, so a small step would reorder a stream.
	__u32 client_if, peer_if; // unknown if 0 or with CANDIDATE
	__u32 client_max, peer_max;
	__be16 channel, client_port, listener_port, peer_port, relay_port;
	__u16 bound; // the socket of the relay is bound to the address relay
	__u32 hops; // relay_out records client_hop and peer_hop
	// second cache line
	struct address client, peer, listener;
	struct address relay; // unless bound, relay_out sets it while peer_if is unknown
	// third and fourth cache line
	__u64 up_packets, up_bytes;
	struct hop peer_hop;
	__u64 unused_up[4];
	__u64 down_packets, down_bytes;
	struct hop client_hop;
	__u64 unused_down[4];
};
_Static_assert(offsetof(struct slot, client) == 64, "second cache line");
_Static_assert(offsetof(struct slot, up_packets) == 128, "third cache line");
_Static_assert(sizeof(struct slot) == 256, "package offload repeats the layout");

// Package offload sets max_entries of up, down and slots when it loads them.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct key);
	__type(value, __u32);
} up SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct down_key);
	__type(value, __u32);
} down SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} generations SEC(".maps");

// struct scratch is memory of one CPU for one run of a program.
struct scratch {
	struct key key;
	struct address local;
	__u64 now;
	__u64 addresses; // what the changes of addresses add to a sum
	struct hop hop; // towards the destination, for relay_xdp
	__u64 check; // the UDP checksum, for relay_xdp
	__u32 out; // the interface towards the destination
	__u32 header; // the first four bytes of the UDP payload, 0 of a shorter one
	__u32 size; // of the IP packet of stunnerd, at least SAFE4 or SAFE6; 0 of a fragment
	__u8 headers[52]; // of a packet of stunnerd: network header, UDP header and the four bytes behind them
	__u32 length; // of the UDP header and its payload
	__u32 channel_header; // directly before the payload
	__u8 payload[SCRATCH];
};
_Static_assert(offsetof(struct scratch, payload) % 8 == 0, "the payload is copied in words");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

// The filters of clsact outlive stunnerd. They hold enter_in and enter_out, which call relay_in and relay_out through
// this map. The kernel empties a map of programs when no process has it open, so the filters do nothing from then on.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

static const __u32 zero; // a key that is not on the stack

ALWAYS struct slot *live(__u32 *index, struct scratch *x)
{
	if (!index)
		return NULL;
	struct slot *s = bpf_map_lookup_elem(&slots, index);
	if (!s)
		return NULL;
	__u64 *generation = bpf_map_lookup_elem(&generations, &s->group);
	if (!generation || *generation != s->generation || s->until <= x->now)
		return NULL;
	return s;
}

ALWAYS bool known(__u32 interface)
{
	return interface && !(interface & CANDIDATE);
}

ALWAYS bool same(const struct address *a, const struct address *b, bool v6)
{
	if (a->word[3] != b->word[3])
		return false;
	return !v6 || (a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2]);
}

ALWAYS void copy(struct address *to, const void *words)
{
	const __u32 *from = words;
	to->word[0] = from[0];
	to->word[1] = from[1];
	to->word[2] = from[2];
	to->word[3] = from[3];
}

ALWAYS void map4(struct address *to, __be32 v4)
{
	to->word[0] = 0;
	to->word[1] = 0;
	to->word[2] = bpf_htonl(0xffff);
	to->word[3] = v4;
}

// plus and minus are terms of a one's complement sum.
ALWAYS __u64 plus(const struct address *a, bool v6)
{
	return v6 ? (__u64)a->word[0] + a->word[1] + a->word[2] + a->word[3] : a->word[3];
}

ALWAYS __u64 minus(const struct address *a, bool v6)
{
	__u64 sum = (__u32)~a->word[3];
	return v6 ? sum + (__u32)~a->word[0] + (__u32)~a->word[1] + (__u32)~a->word[2] : sum;
}

ALWAYS __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

ALWAYS __u16 fold16(__u64 sum)
{
	__u32 s = fold(sum);
	s = (s & 0xffff) + (s >> 16);
	return (s & 0xffff) + (s >> 16);
}

// forward rewrites a packet and redirects it to x->out. The present source of the packet is in x->key, its destination
// in x->local and x->key. v6 and to_peer are constants in each of the four instances.
//
// The payload moves and the UDP header stays: the offset of a checksum that the network card is to complete
// (CHECKSUM_PARTIAL) is not accessible to programs. bpf_l4_csum_replace updates both forms of a checksum if it is told
// which differences are in the pseudo header.
ALWAYS int forward(struct __sk_buff *skb, struct scratch *x, struct slot *s, bool v6, bool to_peer)
{
	__u32 length = x->length;
	const __u32 udp_at = ETH_HLEN + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	const __u32 data_at = udp_at + UDP_HEADER;
	const __u32 payload_at = to_peer ? data_at + CHANNEL_HEADER : data_at; // at present
	const int delta = to_peer ? -CHANNEL_HEADER : CHANNEL_HEADER;

	// bpf_redirect_neigh does not check the MTU. bpf_fib_lookup knows that of the path, but fails unless the interface
	// forwards IP packets (sysctl ip_forward).
	if (length + delta + udp_at - ETH_HLEN > (to_peer ? s->peer_max : s->client_max))
		return PASS;
	__u32 n = length - (payload_at - udp_at);
	x->channel_header = (__u32)s->channel | (__u32)bpf_htons(n) << 16;
	if (n && bpf_skb_load_bytes(skb, payload_at, x->payload, POSITIVE(n)))
		return PASS;
	if (to_peer && n && x->payload[0] <= STUN_MAX)
		return PASS;
	if (bpf_skb_change_tail(skb, skb->len + delta, 0))
		return PASS;
	AGAIN();
	length = x->length;
	n = length - (payload_at - udp_at);
	if (to_peer) {
		if (n && bpf_skb_store_bytes(skb, data_at, x->payload, POSITIVE(n), 0))
			return TC_ACT_SHOT;
	} else {
		if (bpf_skb_store_bytes(skb, data_at, &x->channel_header, (n & (SCRATCH - 1)) + CHANNEL_HEADER, 0))
			return TC_ACT_SHOT;
	}

	// Everything is computed again after each call: a value that a register does not keep costs a speculation barrier.
	const struct address *source = to_peer ? &s->relay : &s->listener, *dest = to_peer ? &s->peer : &s->client;
	const __be16 *source_port = to_peer ? &s->relay_port : &s->listener_port;
	const __be16 *dest_port = to_peer ? &s->peer_port : &s->client_port;
#define PLUS_LENGTH ((__u64)bpf_htons(length + delta))
#define MINUS_LENGTH ((__u32)~(__u32)bpf_htons(length))
	x->addresses = plus(source, v6) + plus(dest, v6) + minus(&x->key.remote, v6) + minus(&x->local, v6);
	const __u32 check_at = udp_at + offsetof(struct udphdr, check);
	__u64 pseudo = x->addresses + PLUS_LENGTH + MINUS_LENGTH;
	bpf_l4_csum_replace(skb, check_at, 0, fold(pseudo), BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0);
	AGAIN();
	length = x->length;
	__u64 rest = PLUS_LENGTH + MINUS_LENGTH + *source_port + *dest_port + (__u32)~(__u32)x->key.remote_port +
		(__u32)~(__u32)x->key.local_port + (to_peer ? (__u32)~x->channel_header : x->channel_header);
	bpf_l4_csum_replace(skb, check_at, 0, fold(rest), BPF_F_MARK_MANGLED_0);
	AGAIN();
	length = x->length;

	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + data_at > end)
		return TC_ACT_SHOT;
	struct udphdr *udp = data + udp_at;
	udp->source = *source_port;
	udp->dest = *dest_port;
	udp->len = PLUS_LENGTH;
	if (v6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		// Class and flow label are 0, as the class of the packets of stunnerd (RFC 8656 §13.2, §14: a fixed value).
		*(__be32 *)ip = bpf_htonl(0x60000000);
		ip->hop_limit--;
		ip->payload_len = PLUS_LENGTH;
		copy((void *)&ip->saddr, source);
		copy((void *)&ip->daddr, dest);
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		__be16 total = bpf_htons(length + delta + sizeof *ip);
		__u64 sum = x->addresses + (__u16)~ip->check + total + (__u32)~(__u32)ip->tot_len;
		sum += (__u32)~(__u32)bpf_htons(0x0100); // one less in the TTL
		// The type of service is 0, as that of the packets of stunnerd (RFC 8656 §14: a fixed value).
		sum += (__u32)~(__u32)*(__be16 *)ip + bpf_htons(0x4500);
		*(__be16 *)ip = bpf_htons(0x4500);
		ip->check = ~fold16(sum);
		ip->ttl--;
		ip->tot_len = total;
		ip->saddr = source->word[3];
		ip->daddr = dest->word[3];
	}
	const struct hop *hop = to_peer ? &s->peer_hop : &s->client_hop;
	skb->tc_index = s->hops && (hop->to ^ TICK(x->now)) >> 48 ? RENEW : FORWARDED;
	return bpf_redirect_neigh(x->out, NULL, 0, 0);
}

// is_channel_data reports whether the first bytes of a payload of n bytes are the header of ChannelData without
// padding. Padding is legal over UDP, but rare. The media of peers hardly ever looks like it.
ALWAYS bool is_channel_data(__u32 header, __u32 n)
{
	return (header & 0xc0) == 0x40 && bpf_ntohs(header >> 16) + CHANNEL_HEADER == n;
}

// of_client reports whether a packet is one of the client of a slot, in its channel. The slot may have been freed and used
// again since the lookup of its index.
ALWAYS bool of_client(const struct slot *s, const struct scratch *x, bool v6)
{
	return same(&s->client, &x->key.remote, v6) && s->client_port == x->key.remote_port && s->channel == x->key.channel &&
		s->listener_port == x->key.local_port && same(&s->listener, &x->local, v6);
}

// of_peer reports whether a packet is one of the peer of a slot, and permitted.
ALWAYS bool of_peer(const struct slot *s, const struct scratch *x, bool v6)
{
	return s->permitted > x->now && same(&s->peer, &x->key.remote, v6) && s->peer_port == x->key.remote_port &&
		s->relay_port == x->key.local_port && same(&s->relay, &x->local, v6);
}

// count_up counts a packet to the peer, which prolongs the permission of the peer.
ALWAYS void count_up(struct slot *s, const struct scratch *x)
{
	if (x->now + s->prolong > s->permitted + SECOND)
		s->permitted = x->now + s->prolong;
	__sync_fetch_and_add(&s->up_packets, 1);
	__sync_fetch_and_add(&s->up_bytes, x->length - UDP_HEADER - CHANNEL_HEADER);
}

ALWAYS void count_down(struct slot *s, const struct scratch *x)
{
	__sync_fetch_and_add(&s->down_packets, 1);
	__sync_fetch_and_add(&s->down_bytes, x->length - UDP_HEADER);
}

// elsewhere reports whether a packet has arrived at another interface than the known one towards its source. The host may
// drop such a packet (rp_filter), or filter it by its interface.
ALWAYS bool elsewhere(const struct __sk_buff *skb, __u32 interface)
{
	return known(interface) && interface != skb->ifindex;
}

// relay forwards a packet if it belongs to a live binding.
ALWAYS int relay(struct __sk_buff *skb, struct scratch *x, bool v6)
{
	x->now = bpf_ktime_get_coarse_ns();
	x->key.zero = 0;
	if (is_channel_data(x->header, x->length - UDP_HEADER)) {
		x->key.channel = x->header;
		struct slot *s = live(bpf_map_lookup_elem(&up, &x->key), x);
		if (s) {
			x->out = s->peer_if;
			if (!known(x->out) || elsewhere(skb, s->client_if) || !of_client(s, x, v6))
				return PASS;
			int verdict = forward(skb, x, s, v6, true);
			if (verdict == TC_ACT_REDIRECT)
				count_up(s, x);
			SEPARATE(1);
			return verdict;
		}
	}
	struct slot *s = live(bpf_map_lookup_elem(&down, &x->key), x);
	if (!s)
		return PASS;
	x->out = s->client_if;
	if (!known(x->out) || elsewhere(skb, s->peer_if) || !of_peer(s, x, v6))
		return PASS;
	int verdict = forward(skb, x, s, v6, false);
	if (verdict == TC_ACT_REDIRECT)
		count_down(s, x);
	SEPARATE(2);
	return verdict;
}

// linear makes the first n bytes of a packet directly accessible.
ALWAYS bool linear(struct __sk_buff *skb, __u32 n)
{
	return (void *)(long)skb->data + n <= (void *)(long)skb->data_end || !bpf_skb_pull_data(skb, n);
}

// The header of ChannelData is read together with the headers. A shorter datagram is passed to stunnerd.
#define HEADERS4 (ETH_HLEN + sizeof(struct iphdr) + sizeof(struct udphdr) + CHANNEL_HEADER)
#define HEADERS6 (ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct udphdr) + CHANNEL_HEADER)

// sent4 reads the headers of a UDP packet of stunnerd: its destination and source, the first four bytes of its payload,
// and its size. It reports false for other packets.
ALWAYS bool sent4(struct __sk_buff *skb, struct scratch *x, __u32 at)
{
	__builtin_memset(x->headers, 0, sizeof x->headers);
	struct iphdr *ip = (void *)x->headers;
	struct udphdr *udp = (void *)(ip + 1);
	// A shorter payload than the header of ChannelData is read in the second attempt.
	if (bpf_skb_load_bytes(skb, at, ip, HEADERS4 - ETH_HLEN) &&
		bpf_skb_load_bytes(skb, at, ip, HEADERS4 - ETH_HLEN - CHANNEL_HEADER))
		return false;
	if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(0x1fff))
		return false;
	x->now = bpf_ktime_get_coarse_ns();
	map4(&x->key.remote, ip->daddr);
	map4(&x->local, ip->saddr);
	x->key.remote_port = udp->dest;
	x->key.local_port = udp->source;
	x->key.zero = 0;
	x->header = *(__u32 *)(udp + 1);
	// A packet with a gso_size becomes several packets with payloads of this size.
	x->size = skb->gso_size ? skb->gso_size + sizeof *ip + sizeof *udp : bpf_ntohs(ip->tot_len);
	if (x->size < SAFE4)
		x->size = SAFE4;
	if (ip->frag_off & bpf_htons(0x2000))
		x->size = 0;
	return true;
}

ALWAYS bool sent6(struct __sk_buff *skb, struct scratch *x, __u32 at)
{
	__builtin_memset(x->headers, 0, sizeof x->headers);
	struct ipv6hdr *ip = (void *)x->headers;
	struct udphdr *udp = (void *)(ip + 1);
	if (bpf_skb_load_bytes(skb, at, ip, HEADERS6 - ETH_HLEN) &&
		bpf_skb_load_bytes(skb, at, ip, HEADERS6 - ETH_HLEN - CHANNEL_HEADER))
		return false;
	if (ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
		return false;
	x->now = bpf_ktime_get_coarse_ns();
	copy(&x->key.remote, &ip->daddr);
	copy(&x->local, &ip->saddr);
	x->key.remote_port = udp->dest;
	x->key.local_port = udp->source;
	x->key.zero = 0;
	x->header = *(__u32 *)(udp + 1);
	x->size = sizeof *ip + (skb->gso_size ? skb->gso_size + sizeof *udp : bpf_ntohs(ip->payload_len));
	if (x->size < SAFE6)
		x->size = SAFE6;
	return true;
}

// too_big handles the report of a router that a packet was longer than the MTU of its next link. The headers of the
// packet are in x. Its next packets are passed to stunnerd, for which the kernel fragments them from now on.
ALWAYS int too_big(struct scratch *x)
{
	struct slot *s = live(bpf_map_lookup_elem(&down, &x->key), x);
	if (s) {
		s->peer_max = 0;
		return PASS;
	}
	x->key.channel = x->header;
	s = live(bpf_map_lookup_elem(&up, &x->key), x);
	if (s)
		s->client_max = 0;
	return PASS;
}

ALWAYS int in4(struct __sk_buff *skb, struct scratch *x)
{
	if (skb->len < HEADERS4 || !linear(skb, HEADERS4))
		return PASS;
	void *data = (void *)(long)skb->data;
	if (data + HEADERS4 > (void *)(long)skb->data_end)
		return PASS;
	struct iphdr *ip = data + ETH_HLEN;
	struct udphdr *udp = (void *)(ip + 1);
	__u32 length = bpf_ntohs(udp->len);
	if (ip->version != 4 || ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
		return PASS;
	if (ip->protocol == IPPROTO_ICMP && *(__be16 *)udp == bpf_htons(FRAG_NEEDED))
		return sent4(skb, x, ETH_HLEN + sizeof *ip + ICMP_HEADER) ? too_big(x) : PASS;
	if (ip->protocol != IPPROTO_UDP || ip->ttl <= 1)
		return PASS;
	if (length > MAX_DATAGRAM || length < UDP_HEADER + CHANNEL_HEADER ||
		bpf_ntohs(ip->tot_len) != length + sizeof *ip || skb->len != length + sizeof *ip + ETH_HLEN)
		return PASS;
	__u32 *word = (void *)ip;
	if (fold16((__u64)word[0] + word[1] + word[2] + word[3] + word[4]) != 0xffff)
		return PASS;
	map4(&x->key.remote, ip->saddr);
	x->key.remote_port = udp->source;
	x->key.local_port = udp->dest;
	x->local.word[3] = ip->daddr;
	x->header = *(__u32 *)(udp + 1);
	x->length = length;
	return relay(skb, x, false);
}

ALWAYS int in6(struct __sk_buff *skb, struct scratch *x)
{
	if (skb->len < HEADERS6 || !linear(skb, HEADERS6))
		return PASS;
	void *data = (void *)(long)skb->data;
	if (data + HEADERS6 > (void *)(long)skb->data_end)
		return PASS;
	struct ipv6hdr *ip = data + ETH_HLEN;
	struct udphdr *udp = (void *)(ip + 1);
	__u32 length = bpf_ntohs(udp->len);
	if (ip->version == 6 && ip->nexthdr == IPPROTO_ICMPV6 && *(__u8 *)udp == TOO_BIG)
		return sent6(skb, x, ETH_HLEN + sizeof *ip + ICMP_HEADER) ? too_big(x) : PASS;
	if (ip->version != 6 || ip->nexthdr != IPPROTO_UDP || ip->hop_limit <= 1 || !udp->check)
		return PASS;
	if (length > MAX_DATAGRAM || length < UDP_HEADER + CHANNEL_HEADER || bpf_ntohs(ip->payload_len) != length ||
		skb->len != length + sizeof *ip + ETH_HLEN)
		return PASS;
	copy(&x->key.remote, &ip->saddr);
	x->key.remote_port = udp->source;
	x->key.local_port = udp->dest;
	copy(&x->local, &ip->daddr);
	x->header = *(__u32 *)(udp + 1);
	x->length = length;
	return relay(skb, x, true);
}

SEC("tc") int relay_in(struct __sk_buff *skb)
{
	// A packet with a gso_size is several datagrams. An interface in promiscuous mode also has packets of other hosts.
	if (skb->gso_size || skb->vlan_present || skb->pkt_type != PACKET_HOST)
		return PASS;
	__u32 protocol = skb->protocol;
	if (protocol != bpf_htons(ETH_P_IP) && protocol != bpf_htons(ETH_P_IPV6))
		return PASS;
	struct scratch *x = bpf_map_lookup_elem(&scratches, &zero);
	if (!x)
		return PASS;
	return protocol == bpf_htons(ETH_P_IP) ? in4(skb, x) : in6(skb, x);
}

// confirm records the interface of a packet. Two packets in succession at the same interface confirm it, so relay_in
// on another CPU does not see it before the rest of the slot.
//
// A packet to a device on top of another one, such as a macvlan, passes the hooks of both, in this order. The address
// of the next host resolves at the upper device only, so the lower one must not be confirmed. SEEN marks the packet
// there. If a program of another owner has removed the mark, the interfaces alternate, and none is confirmed.
ALWAYS void confirm(struct __sk_buff *skb, __u32 *interface)
{
	if (!known(*interface))
		*interface = *interface == (skb->ifindex | CANDIDATE) ? skb->ifindex : skb->ifindex | CANDIDATE;
}

// record records the Ethernet addresses of a packet at its confirmed interface.
ALWAYS void record(struct __sk_buff *skb, struct scratch *x, const struct slot *s, __u32 interface, struct hop *hop)
{
	if (!s->hops || interface != skb->ifindex || bpf_skb_load_bytes(skb, 0, x->payload, 2 * ETH_ALEN))
		return;
	__u32 *word = (void *)x->payload;
	hop->to = TICK(x->now) | (__u64)(word[1] & 0xffff) << 32 | word[0];
	hop->from = TICK(x->now) | (__u64)word[2] << 16 | word[1] >> 16;
}

// renew records the Ethernet addresses of a packet that relay_in has forwarded.
ALWAYS void renew(struct __sk_buff *skb, struct scratch *x)
{
	struct slot *s = live(bpf_map_lookup_elem(&down, &x->key), x);
	if (s) {
		record(skb, x, s, s->peer_if, &s->peer_hop);
		return;
	}
	x->key.channel = x->header;
	s = live(bpf_map_lookup_elem(&up, &x->key), x);
	if (s)
		record(skb, x, s, s->client_if, &s->client_hop);
}

// learn records how stunnerd has reached a client or a peer.
ALWAYS void learn(struct __sk_buff *skb, struct scratch *x)
{
	struct slot *s = live(bpf_map_lookup_elem(&down, &x->key), x);
	if (s) {
		if (!same(&s->relay, &x->local, true)) {
			if (s->bound || known(s->peer_if))
				return;
			copy(&s->relay, &x->local);
			s->peer_if = 0;
		}
		if (x->size > s->peer_max)
			s->peer_max = x->size;
		confirm(skb, &s->peer_if);
		record(skb, x, s, s->peer_if, &s->peer_hop);
		skb->tc_index = SEEN;
		return;
	}
	if ((x->header & 0xc0) != 0x40)
		return;
	x->key.channel = x->header;
	s = live(bpf_map_lookup_elem(&up, &x->key), x);
	if (s && same(&s->listener, &x->local, true)) {
		if (x->size > s->client_max)
			s->client_max = x->size;
		confirm(skb, &s->client_if);
		record(skb, x, s, s->client_if, &s->client_hop);
		skb->tc_index = SEEN;
	}
}

SEC("tc") int relay_out(struct __sk_buff *skb)
{
	__u32 mark = skb->tc_index;
	if (mark == FORWARDED || mark == RENEW)
		skb->tc_index = 0;
	// A packet with a VLAN tag is on its way through the device below that of the VLAN.
	if (mark == FORWARDED || mark == SEEN || skb->vlan_present)
		return PASS;
	__u32 protocol = skb->protocol;
	struct scratch *x = bpf_map_lookup_elem(&scratches, &zero);
	if (!x || !(protocol == bpf_htons(ETH_P_IP) ? sent4(skb, x, ETH_HLEN) :
			protocol == bpf_htons(ETH_P_IPV6) && sent6(skb, x, ETH_HLEN)))
		return PASS;
	if (mark == RENEW)
		renew(skb, x);
	else
		learn(skb, x);
	return PASS;
}

// The headers of a frame.
struct frame4 { struct ethhdr ethernet; struct iphdr ip; struct udphdr udp; __u32 channel_header; } __attribute__((packed));
struct frame6 { struct ethhdr ethernet; struct ipv6hdr ip; struct udphdr udp; __u32 channel_header; } __attribute__((packed));

// address returns an Ethernet address as in struct hop.
ALWAYS __u64 address(const __u8 *bytes)
{
	return *(__u32 *)bytes | (__u64)*(__u16 *)(bytes + 4) << 32;
}

ALWAYS void set_address(__u8 *bytes, __u64 word)
{
	*(__u32 *)bytes = word;
	*(__u16 *)(bytes + 4) = word >> 32;
}

// return_frame rewrites a frame and sends it from the interface at which it has arrived. Its present source is in
// x->key, its destination in x->local and x->key. v6 and to_peer are constants in each of the four instances.
//
// The headers move, and the payload stays. That a network card is to complete a checksum (CHECKSUM_PARTIAL) is not visible
// here, but the field of such a checksum contains the sum of the pseudo header. A packet with this value is passed to
// relay_in, which supports both forms. One of 65,536 complete checksums has this value too.
ALWAYS int return_frame(struct xdp_md *ctx, struct scratch *x, struct slot *s, bool v6, bool to_peer)
{
	const __u32 network = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	const __u32 headers = ETH_HLEN + network + UDP_HEADER + CHANNEL_HEADER;
	const int delta = to_peer ? -CHANNEL_HEADER : CHANNEL_HEADER;
	const struct hop *hop = to_peer ? &s->peer_hop : &s->client_hop;
	x->hop.to = hop->to;
	x->hop.from = hop->from;
	AGAIN();
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + headers > end)
		return XDP_PASS;
	struct ethhdr *ethernet = data;
	// The frame of another host, or an Ethernet header that relay_in renews.
	if ((x->hop.to ^ TICK(x->now)) >> 48 || (x->hop.from ^ TICK(x->now)) >> 48 || !ADDRESS(x->hop.to) ||
		address(ethernet->h_dest) != ADDRESS(x->hop.from))
		return XDP_PASS;
	if (x->length + delta + network > (to_peer ? s->peer_max : s->client_max))
		return XDP_PASS;
	__u32 n = x->length - UDP_HEADER;
	if (to_peer) {
		n -= CHANNEL_HEADER;
		const __u8 *first = data + headers;
		if (n && ((void *)(first + 1) > end || *first <= STUN_MAX))
			return XDP_PASS;
	}
	struct udphdr *udp = data + ETH_HLEN + network;
	x->check = udp->check;
	__u64 pseudo = plus(&x->key.remote, v6) + plus(&x->local, v6) + bpf_htons(IPPROTO_UDP) + udp->len;
	if (x->check == fold16(pseudo))
		return XDP_PASS;
	__builtin_memcpy(x->headers, data + ETH_HLEN, sizeof(struct iphdr));
	x->channel_header = (__u32)s->channel | (__u32)bpf_htons(n) << 16;
	AGAIN();

	const struct address *source = to_peer ? &s->relay : &s->listener, *dest = to_peer ? &s->peer : &s->client;
	const __be16 *source_port = to_peer ? &s->relay_port : &s->listener_port;
	const __be16 *dest_port = to_peer ? &s->peer_port : &s->client_port;
#define NEW_LENGTH bpf_htons(x->length + delta)
	x->addresses = plus(source, v6) + plus(dest, v6) + minus(&x->key.remote, v6) + minus(&x->local, v6);
	if (x->check) { // RFC 1624
		__u64 sum = (__u16)~x->check + x->addresses + *source_port + *dest_port +
			2 * (NEW_LENGTH + (__u64)(__u32)~(__u32)bpf_htons(x->length)) +
			(__u32)~(__u32)x->key.remote_port + (__u32)~(__u32)x->key.local_port +
			(to_peer ? (__u32)~x->channel_header : x->channel_header);
		__u16 check = ~fold16(sum);
		x->check = check ? check : 0xffff;
	}
	AGAIN();

	if (bpf_xdp_adjust_head(ctx, -delta))
		return XDP_PASS;
	data = (void *)(long)ctx->data, end = (void *)(long)ctx->data_end;
	if (data + headers - (to_peer ? CHANNEL_HEADER : 0) > end)
		return XDP_DROP;
	ethernet = data;
	set_address(ethernet->h_dest, x->hop.to);
	set_address(ethernet->h_source, x->hop.from);
	ethernet->h_proto = v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (v6) {
		struct ipv6hdr *ip = data + ETH_HLEN, *before = (void *)x->headers;
		*(__be32 *)ip = bpf_htonl(0x60000000);
		ip->payload_len = NEW_LENGTH;
		ip->nexthdr = IPPROTO_UDP;
		ip->hop_limit = before->hop_limit - 1;
		copy((void *)&ip->saddr, source);
		copy((void *)&ip->daddr, dest);
	} else {
		struct iphdr *ip = data + ETH_HLEN, *before = (void *)x->headers;
		__be16 total = bpf_htons(x->length + delta + sizeof *ip);
		__u64 sum = x->addresses + (__u16)~before->check + total + (__u32)~(__u32)before->tot_len;
		sum += (__u32)~(__u32)bpf_htons(0x0100); // one less in the TTL
		sum += (__u32)~(__u32)*(__be16 *)before + bpf_htons(0x4500);
		*(__be16 *)ip = bpf_htons(0x4500);
		ip->tot_len = total;
		ip->id = before->id;
		ip->frag_off = before->frag_off;
		ip->ttl = before->ttl - 1;
		ip->protocol = IPPROTO_UDP;
		ip->check = ~fold16(sum);
		ip->saddr = source->word[3];
		ip->daddr = dest->word[3];
	}
	udp = data + ETH_HLEN + network;
	udp->source = *source_port;
	udp->dest = *dest_port;
	udp->len = NEW_LENGTH;
	udp->check = x->check;
	if (!to_peer)
		*(__u32 *)(udp + 1) = x->channel_header;
	return XDP_TX;
}

// one_armed reports whether client and peer of a slot are behind the interface of a frame.
ALWAYS bool one_armed(struct xdp_md *ctx, const struct slot *s)
{
	return s->client_if == ctx->ingress_ifindex && s->peer_if == ctx->ingress_ifindex;
}

// relay_frame returns a frame if it belongs to a live binding, as relay forwards a packet.
ALWAYS int relay_frame(struct xdp_md *ctx, struct scratch *x, bool v6)
{
	x->now = bpf_ktime_get_coarse_ns();
	x->key.zero = 0;
	if (is_channel_data(x->header, x->length - UDP_HEADER)) {
		x->key.channel = x->header;
		struct slot *s = live(bpf_map_lookup_elem(&up, &x->key), x);
		if (s) {
			if (!one_armed(ctx, s) || !of_client(s, x, v6))
				return XDP_PASS;
			int verdict = return_frame(ctx, x, s, v6, true);
			if (verdict == XDP_TX)
				count_up(s, x);
			SEPARATE(3);
			return verdict;
		}
	}
	struct slot *s = live(bpf_map_lookup_elem(&down, &x->key), x);
	if (!s || !one_armed(ctx, s) || !of_peer(s, x, v6))
		return XDP_PASS;
	int verdict = return_frame(ctx, x, s, v6, false);
	if (verdict == XDP_TX)
		count_down(s, x);
	SEPARATE(4);
	return verdict;
}

ALWAYS int frame4(struct xdp_md *ctx, struct scratch *x)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame4 *f = data;
	if ((void *)(f + 1) > end)
		return XDP_PASS;
	__u32 length = bpf_ntohs(f->udp.len);
	__u32 *word = (void *)&f->ip;
	if (f->ip.version != 4 || f->ip.ihl != 5 || f->ip.frag_off & bpf_htons(0x3fff) || f->ip.protocol != IPPROTO_UDP ||
		f->ip.ttl <= 1 || length > MAX_DATAGRAM || length < UDP_HEADER + CHANNEL_HEADER ||
		bpf_ntohs(f->ip.tot_len) != length + sizeof f->ip || bpf_xdp_get_buff_len(ctx) != length + sizeof f->ip + ETH_HLEN ||
		fold16((__u64)word[0] + word[1] + word[2] + word[3] + word[4]) != 0xffff)
		return XDP_PASS;
	map4(&x->key.remote, f->ip.saddr);
	x->key.remote_port = f->udp.source;
	x->key.local_port = f->udp.dest;
	x->local.word[3] = f->ip.daddr;
	x->header = f->channel_header;
	x->length = length;
	return relay_frame(ctx, x, false);
}

ALWAYS int frame6(struct xdp_md *ctx, struct scratch *x)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame6 *f = data;
	if ((void *)(f + 1) > end)
		return XDP_PASS;
	__u32 length = bpf_ntohs(f->udp.len);
	if (f->ip.version != 6 || f->ip.nexthdr != IPPROTO_UDP || f->ip.hop_limit <= 1 || !f->udp.check ||
		length > MAX_DATAGRAM || length < UDP_HEADER + CHANNEL_HEADER || bpf_ntohs(f->ip.payload_len) != length ||
		bpf_xdp_get_buff_len(ctx) != length + sizeof f->ip + ETH_HLEN)
		return XDP_PASS;
	copy(&x->key.remote, &f->ip.saddr);
	x->key.remote_port = f->udp.source;
	x->key.local_port = f->udp.dest;
	copy(&x->local, &f->ip.daddr);
	x->header = f->channel_header;
	x->length = length;
	return relay_frame(ctx, x, true);
}

// relay_xdp forwards only packets that relay_in would forward too, and passes all others to it.
SEC("xdp") int relay_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	__be16 protocol = ethernet->h_proto;
	struct scratch *x = bpf_map_lookup_elem(&scratches, &zero);
	if (!x)
		return XDP_PASS;
	if (protocol == bpf_htons(ETH_P_IP))
		return frame4(ctx, x);
	return protocol == bpf_htons(ETH_P_IPV6) ? frame6(ctx, x) : XDP_PASS;
}

SEC("tc") int enter_in(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &programs, 0);
	return PASS;
}

SEC("tc") int enter_out(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &programs, 1);
	return PASS;
}

char _license[] SEC("license") = "GPL";
