package diagnose

// clientCauses are the reasons that no other list contains. Most of them concern the messages or the network of a
// client.
var clientCauses = map[string]cause{
	"malformed": {
		"message",
		"nothing for single ones: scanners send them; else correct the client, which may send only STUN and ChannelData",
	},
	"bad_fingerprint": {
		"FINGERPRINT",
		"remove the middlebox that changes packets, such as an application-level gateway of a router",
	},
	"unknown_attribute": {
		"attributes",
		"use a client that repeats the request without the attribute (RFC 8489 section 6.3.4)",
	},
	"unknown_method": {
		"method",
		"use a client that relays over UDP: TCP relays (RFC 6062) are not supported",
	},
	"no_credential": {
		"credential",
		"nothing: every client starts with such a request, and repeats it with a credential",
	},
	"incomplete_credential": {
		"credential",
		"correct the client: USERNAME, REALM and NONCE are required, with at most 508, 763 and 763 bytes",
	},
	"no_allocation": {
		"allocation",
		"nothing after a restart of pods: clients allocate again; else send all packets of a client to one pod",
	},
	"allocation_exists": {
		"client port",
		"use another client port, or end the earlier allocation",
	},
	"bad_request": {
		"attributes",
		"correct the client: an attribute is missing, has a wrong length, or excludes another one",
	},
	"transport_unsupported": {
		"REQUESTED-TRANSPORT",
		"request a relay over UDP; the client may connect to the gateway over TCP or TLS",
	},
	"family_unsupported": {
		"REQUESTED-ADDRESS-FAMILY",
		"give the pods an address of the family, or request the other family",
	},
	"family_mismatch": {
		"XOR-PEER-ADDRESS",
		"request a relay of the address family of the peer",
	},
	"channel_conflict": {
		"CHANNEL-NUMBER",
		"correct the client: a channel number and a peer stay bound to each other for ten minutes",
	},
	"channel_unbound": {
		"CHANNEL-NUMBER",
		"correct the client: bind the channel, and bind it again within ten minutes",
	},
	"no_permission": {
		"permissions",
		"correct the client: create a permission for the peer, and again within five minutes",
	},
	"too_large": {
		"DATA",
		"bind a channel to the peer, or send shorter datagrams",
	},
	"send_failed": {
		"network",
		"look for a firewall or a missing route between the pods and their peers or clients, and for datagrams above the MTU",
	},
	"congested": {
		"network",
		"look for a slow link or a host that does not respond; add pods if all calls are affected",
	},
	"slow_client": {
		"network of the client",
		"lower the bit rate, or let clients use UDP: the link of the client is slower than its media",
	},
	"crowded": {
		"connections",
		"look for a source of connections without a credential; let the load balancer keep the addresses of clients",
	},
	"unexpected_record": {
		"DTLS records",
		"nothing for single ones; if handshake grows as well, the remedy is that of handshake; else remove the middlebox that changes or repeats packets",
	},
	"idle": {
		"connections",
		"nothing: scanners, health checks and clients that have vanished cause it",
	},
	"stalled_client": {
		"network of the client",
		"nothing: the client or its link has failed, and it connects again",
	},
	"handshake_running": {
		"DTLS handshake",
		"nothing: the client repeats its ClientHello until the handshake is complete",
	},
	"replaced": {
		"DTLS association",
		"nothing: the client has restarted",
	},
	"no_descriptor": {
		"file descriptors",
		"raise the limit of file descriptors of the container or node, or add pods",
	},
	"internal_error": {
		"stunnerd",
		"report it with the log at level DEBUG",
	},
}
