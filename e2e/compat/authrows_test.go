package compat

import "strings"

// difference is a row of the table "Auth service" of docs/migration/auth.md.
type difference struct{ request, existing, ours, reason string }

var (
	errorBody = difference{
		"any request that is refused", "`text/plain`",
		"`application/problem+json` (RFC 9457) with the name of the parameter",
		"A client can show which parameter is wrong.",
	}
	charset = difference{
		"any request that is answered", "`Content-Type: application/json; charset=UTF-8`",
		"`Content-Type: application/json`", "The media type has no parameter `charset` (RFC 8259 §11).",
	}
	notReady = difference{
		"any, before the first config", "500", "503 with `Retry-After`",
		"The state is temporary (RFC 9110 §15.6.4).",
	}
	longTTL = difference{
		"`ttl` above the maximum of the gateway", "200 with this `ttl`, without a limit",
		"200 with the maximum: 86400, or the value of `--max-ttl` or of `authLifetime` of the GatewayConfig",
		"A credential cannot be revoked before it expires.",
	}
	lifetime = difference{
		"no `ttl`, for a gateway with `authLifetime`", "200 with `ttl` 86400", "200 with `ttl` `authLifetime`",
		"The existing service ignores `authLifetime`.",
	}
	shortTTL = difference{
		"`ttl` of 0 or less", "200 with a credential that has expired", "400",
		"No gateway accepts the credential.",
	}
	colon = difference{
		"`username` with a colon", "200", "400",
		"A colon separates expiry and user id in a TURN user name. " +
			"The gateway would read another user id, or another expiry.",
	}
	noName = difference{
		"empty `username`", "200 without a user id", "400. Without the parameter: 200 without a user id",
		"An empty value is usually an error of the client. All its users would share one quota.",
	}
	longName = difference{
		"`username` of more than 128 bytes", "200", "400",
		"The user id is in every STUN request, in quotas and in logs. RFC 8489 §14.3 limits the TURN user name.",
	}
	gatewayAlone = difference{
		"`gateway` without `namespace`", "200; the parameter is ignored", "400",
		"The answer would contain gateways that the request does not name.",
	}
	listenerAlone = difference{
		"`listener` without `namespace` and `gateway`", "200; the parameter is ignored", "400",
		"The answer would contain listeners that the request does not name.",
	}
	noHost = difference{
		"empty `public-addr`", "200; the parameter is ignored", "400",
		"An empty value is usually an error of the client, which would get addresses that it did not request.",
	}
	unknownPolicy = difference{
		"`/ice` with an unknown `iceTransportPolicy`", "200 with this value", "400",
		"`new RTCPeerConnection` throws an exception for the value.",
	}
	chartGateways = difference{
		"any, for a gateway outside of the namespace of the chart", "200",
		"403 if the request names it, otherwise it is left out; `stunnerAuthService.gateways={*/*}` of the chart " +
			"selects all gateways",
		"Every caller would get credentials of every tenant.",
	}
	service = difference{
		"`/ice` without `service`", "400", "200",
		"The parameter is optional in the specification of the existing service.",
	}
	anyGateway = difference{
		"`/` that several gateways match", "200 with a random one", "200 with the first by namespace and name",
		"Equal requests get equal answers.",
	}
	anyOrder = difference{
		"`/ice` that several gateways match", "200 in random order", "200 in the order of namespace and name",
		"Equal requests get equal answers.",
	}
	orderOfURLs = difference{
		"any, for a gateway with several listeners", "200 with the URLs in the order of the listeners",
		"200 with the URLs of UDP, DTLS, TCP and TLS, in this order", "Some clients use the first URL only.",
	}
	noAddress = difference{
		"any, for a gateway without a public address", "200 with the host `0.0.0.0` or the address of a pod",
		"404; `/ice` leaves the gateway out if others match", "Clients cannot reach these addresses.",
	}
	halfAddress = difference{
		"any, for a listener without a public address", "200 with the host `0.0.0.0` or the address of a pod",
		"200 without the listener", "Clients cannot reach these addresses.",
	}
	noRelay = difference{
		"`/` for a gateway of type `none`, which serves STUN only", "200 with an empty user name and password", "404",
		"There is no credential, and the answer has no other meaning.",
	}
	stunURLs = difference{
		"`/ice` for a gateway of type `none`, which serves STUN only",
		"200 with a `turn:` URL and an empty user name and credential",
		"200 with a `stun:` URL", "`new RTCPeerConnection` throws an exception for a `turn:` URL without a credential.",
	}
	shortProtocol = difference{
		"any, for a listener with `protocol: UDP`, `TCP`, `TLS` or `DTLS`", "200 with a URL without a scheme",
		"200 with a URL as for `TURN-UDP`, `TURN-TCP`, `TURN-TLS` or `TURN-DTLS`", "The URL is not valid (RFC 7065).",
	}
)

// differences are the rows of the table, in its order.
var differences = []*difference{
	&errorBody, &charset, &notReady, &longTTL, &lifetime, &shortTTL, &colon, &noName, &longName, &gatewayAlone,
	&listenerAlone, &chartGateways, &noHost, &unknownPolicy, &service, &anyGateway, &anyOrder, &orderOfURLs, &noAddress, &halfAddress,
	&noRelay, &stunURLs, &shortProtocol,
}

// answer is an answer of an auth service.
type answer struct {
	status int
	media  string // without parameters, unless exact is set
	exact  bool
	random bool   // another request may get another gateway, or the gateways in another order
	wrong  string // the parameter that an error names
	policy string
	// servers has one element for an answer of /.
	servers []server
}

// server is the part of an answer for one gateway.
type server struct {
	// user is the user id of an ephemeral credential, or the user name of a static one.
	user string
	ttl  int64 // seconds; 0 for a static credential
	urls string
}

const (
	asJSON = "application/json"
	day    = 86400
)

// turn is an answer of GET /.
func turn(user string, ttl int64, urls ...string) answer {
	return answer{status: 200, media: asJSON, servers: []server{{user, ttl, strings.Join(urls, " ")}}}
}

// ice is an answer of GET /ice.
func ice(policy string, servers ...server) answer {
	return answer{status: 200, media: asJSON, policy: policy, servers: servers}
}

// text is an error of the existing service.
func text(status int) answer { return answer{status: status, media: "text/plain"} }

// problem is an error of this service.
func problem(status int, parameter string) answer {
	return answer{status: status, media: "application/problem+json", wrong: parameter}
}

func random(a answer) answer {
	a.random = true
	return a
}

func exact(a answer, media string) answer {
	a.exact, a.media = true, media
	return a
}

// row is a request with the recorded answer of the existing service and the answer of this service.
type row struct {
	target         string
	existing, ours answer
	why            *difference // nil if the answers are equal
}

func same(target string, a answer) row { return row{target, a, a, nil} }

// refused is a request that both services refuse with the same status.
func refused(target string, status int, parameter string) row {
	return row{target, text(status), problem(status, parameter), &errorBody}
}

// The requests of the tables below, of TURN REST and of ICE servers, for one gateway.
const (
	alpha  = "/?service=turn&namespace=calls&gateway=alpha"
	alphas = "/ice?service=turn&namespace=calls&gateway=alpha"
)

// The URLs of the listeners of calls/alpha and calls/beta.
const (
	udp  = "turn:203.0.113.7:3478?transport=udp"
	dtls = "turns:203.0.113.7:5349?transport=udp"
	tcp  = "turn:203.0.113.7:3478?transport=tcp"
	tls  = "turns:203.0.113.7:443?transport=tcp"
	all  = udp + " " + dtls + " " + tcp + " " + tls
	beta = "turn:198.51.100.20:3478?transport=udp"
)

// rows are requests to a service with the gateways of testdata/gateways.yaml.
func rows() []row {
	moved := func(host string) string { return strings.ReplaceAll(all, "203.0.113.7", host) }
	fixed := server{"user-1", 0, beta}
	long := strings.Repeat("u", 129)
	return []row{
		// User names.
		same(alpha+"&username=alice&ttl=3600", turn("alice", 3600, all)),
		same(alpha+"&ttl=3600", turn("", 3600, all)),
		same(alpha+"&username=alice%20smith", turn("alice smith", day, all)),
		same(alpha+"&username=%C3%A9mile", turn("émile", day, all)),
		same(alpha+"&username=1893456000", turn("1893456000", day, all)),
		same(alpha+"&username="+long[1:], turn(long[1:], day, all)),
		{alpha + "&username=a:b", turn("a:b", day, all), problem(400, "username"), &colon},
		{alphas + "&username=a:b", ice("all", server{"a:b", day, all}), problem(400, "username"), &colon},
		{alpha + "&username=", turn("", day, all), problem(400, "username"), &noName},
		{alpha + "&username=" + long, turn(long, day, all), problem(400, "username"), &longName},

		// Lifetimes.
		same(alpha+"&username=alice", turn("alice", day, all)),
		same(alpha+"&username=alice&ttl=1", turn("alice", 1, all)),
		same(alpha+"&username=alice&ttl=86400", turn("alice", day, all)),
		same(alphas+"&username=alice&ttl=60", ice("all", server{"alice", 60, all})),
		{alpha + "&username=alice&ttl=86401", turn("alice", 86401, all), turn("alice", day, all), &longTTL},
		{alpha + "&username=alice&ttl=604800", turn("alice", 604800, all), turn("alice", day, all), &longTTL},
		{alphas + "&username=alice&ttl=604800", ice("all", server{"alice", 604800, all}),
			ice("all", server{"alice", day, all}), &longTTL},
		{alpha + "&username=alice&ttl=0", turn("alice", 0, all), problem(400, "ttl"), &shortTTL},
		{alpha + "&username=alice&ttl=-1", turn("alice", -1, all), problem(400, "ttl"), &shortTTL},
		{alphas + "&username=alice&ttl=0", ice("all", server{"alice", 0, all}), problem(400, "ttl"), &shortTTL},
		refused(alpha+"&ttl=many", 400, "ttl"),
		refused(alpha+"&ttl=1.5", 400, "ttl"),
		refused(alphas+"&ttl=1h", 400, "ttl"),
		{"/?service=turn&namespace=short&username=alice", turn("alice", day, "turn:203.0.113.8:3478?transport=udp"),
			turn("alice", 600, "turn:203.0.113.8:3478?transport=udp"), &lifetime},
		{"/?service=turn&namespace=short&username=alice&ttl=601",
			turn("alice", 601, "turn:203.0.113.8:3478?transport=udp"),
			turn("alice", 600, "turn:203.0.113.8:3478?transport=udp"), &longTTL},

		// Static credentials.
		same("/?service=turn&namespace=calls&gateway=beta", turn("user-1", 0, beta)),
		same("/?service=turn&namespace=calls&gateway=beta&username=alice", turn("user-1", 0, beta)),
		same("/ice?service=turn&namespace=calls&gateway=beta&username=alice&ttl=60", ice("all", fixed)),
		same("/ice?service=turn&namespace=calls&gateway=beta&username=alice&ttl=60&colour=blue&tll=1", ice("all", fixed)),

		// The parameter service, and the key.
		same(alpha+"&key=0123&username=alice", turn("alice", day, all)),
		same(alphas+"&key=0123&username=alice", ice("all", server{"alice", day, all})),
		refused("/?namespace=calls&gateway=alpha", 400, "service"),
		refused("/?service=stun", 400, "service"),
		refused("/?service=TURN", 400, "service"),
		refused("/ice?service=stun", 400, "service"),
		{"/ice?namespace=calls&gateway=beta", text(400), ice("all", fixed), &service},

		// Selection of gateways.
		{"/?service=turn&namespace=calls&username=alice", random(turn("alice", day, all)), turn("alice", day, all),
			&anyGateway},
		{"/ice?service=turn&namespace=calls&username=alice",
			random(ice("all", server{"alice", day, all}, fixed)),
			ice("all", server{"alice", day, all}, fixed), &anyOrder},
		{"/?service=turn&gateway=beta", random(turn("alice", day, all)), problem(400, "gateway"), &gatewayAlone},
		{"/ice?service=turn&gateway=beta", random(ice("all", fixed)), problem(400, "gateway"), &gatewayAlone},
		{"/?service=turn&namespace=calls&listener=udp", random(turn("alice", day, all)), problem(400, "listener"),
			&listenerAlone},
		{"/ice?service=turn&listener=udp", random(ice("all", fixed)), problem(400, "listener"), &listenerAlone},
		same(alpha+"&listener=udp&username=alice", turn("alice", day, udp)),
		same(alpha+"&listener=tcp&username=alice", turn("alice", day, tcp)),
		same(alpha+"&listener=tls&username=alice", turn("alice", day, tls)),
		same(alpha+"&listener=dtls&username=alice", turn("alice", day, dtls)),
		same(alphas+"&listener=tls&username=alice", ice("all", server{"alice", day, tls})),
		refused("/?service=turn&namespace=none", 404, "namespace"),
		refused("/?service=turn&namespace=calls&gateway=none", 404, "gateway"),
		refused(alpha+"&listener=none", 404, "listener"),
		refused("/ice?service=turn&namespace=none", 404, "namespace"),
		refused(alphas+"&listener=none", 404, "listener"),

		// URLs.
		same(alpha+"&public-addr=192.0.2.44&username=alice", turn("alice", day, moved("192.0.2.44"))),
		same(alpha+"&public-addr=turn.example.org&username=alice", turn("alice", day, moved("turn.example.org"))),
		same(alpha+"&public-addr=2001:db8::44&username=alice", turn("alice", day, moved("[2001:db8::44]"))),
		same(alphas+"&public-addr=192.0.2.44&username=alice",
			ice("all", server{"alice", day, moved("192.0.2.44")})),
		{alpha + "&public-addr=&username=alice", turn("alice", day, all), problem(400, "public-addr"), &noHost},
		same("/?service=turn&namespace=edge&gateway=v6&username=alice",
			turn("alice", day, "turn:[2001:db8::7]:3478?transport=udp")),
		same("/?service=turn&namespace=edge&gateway=named&username=alice",
			turn("alice", day, "turns:turn.example.org:443?transport=tcp")),
		same("/?service=turn&namespace=edge&gateway=plain&username=alice",
			turn("alice", day, "turn:203.0.113.10:3479?transport=tcp")),
		{"/?service=turn&namespace=edge&gateway=mixed&username=alice",
			turn("alice", day, "turn:203.0.113.11:3478?transport=tcp turn:203.0.113.11:3478?transport=udp"),
			turn("alice", day, "turn:203.0.113.11:3478?transport=udp turn:203.0.113.11:3478?transport=tcp"),
			&orderOfURLs},
		{"/?service=turn&namespace=edge&gateway=old&username=alice",
			turn("alice", day, ":203.0.113.9:3478?transport=udp"),
			turn("alice", day, "turn:203.0.113.9:3478?transport=udp"), &shortProtocol},

		// Gateways and listeners without a public address, and gateways without credentials.
		{"/?service=turn&namespace=away&gateway=pending&username=alice",
			turn("alice", day, "turn:0.0.0.0:3478?transport=udp"), problem(404, ""), &noAddress},
		{"/ice?service=turn&namespace=away&gateway=pending&username=alice",
			ice("all", server{"alice", day, "turn:0.0.0.0:3478?transport=udp"}), problem(404, ""), &noAddress},
		same("/?service=turn&namespace=away&gateway=pending&username=alice&public-addr=192.0.2.44",
			turn("alice", day, "turn:192.0.2.44:3478?transport=udp")),
		{"/?service=turn&namespace=away&gateway=half&username=alice",
			turn("alice", day, "turn:203.0.113.12:3478?transport=udp turn:0.0.0.0:3478?transport=tcp"),
			turn("alice", day, "turn:203.0.113.12:3478?transport=udp"), &halfAddress},
		{"/?service=turn&namespace=stun", turn("", 0, "turn:203.0.113.13:3478?transport=udp"), problem(404, ""),
			&noRelay},
		{"/ice?service=turn&namespace=stun", ice("all", server{"", 0, "turn:203.0.113.13:3478?transport=udp"}),
			ice("all", server{"", 0, "stun:203.0.113.13:3478"}), &stunURLs},

		// The parameter iceTransportPolicy.
		same(alphas+"&iceTransportPolicy=all&username=alice", ice("all", server{"alice", day, all})),
		same(alphas+"&iceTransportPolicy=relay&username=alice", ice("relay", server{"alice", day, all})),
		same(alphas+"&iceTransportPolicy=public&username=alice", ice("public", server{"alice", day, all})),
		{alphas + "&iceTransportPolicy=none&username=alice", ice("none", server{"alice", day, all}),
			problem(400, "iceTransportPolicy"), &unknownPolicy},

		// The header Content-Type.
		{alpha + "&username=alice", exact(turn("alice", day, all), "application/json; charset=UTF-8"),
			exact(turn("alice", day, all), asJSON), &charset},
	}
}

// unready are requests to a service that has received no config.
func unready() []row {
	return []row{
		{alpha, text(500), problem(503, ""), &notReady},
		{alphas, text(500), problem(503, ""), &notReady},
	}
}

// limited are requests to a service with the flag --gateways=calls/*, which the chart sets for its own namespace.
func limited() []row {
	const v6 = "turn:[2001:db8::7]:3478?transport=udp"
	const query = "namespace=edge&gateway=v6&username=alice"
	return []row{
		same(alpha+"&listener=udp&username=alice", turn("alice", day, udp)),
		{"/?service=turn&" + query, turn("alice", day, v6), problem(403, "gateway"), &chartGateways},
		{"/ice?service=turn&" + query, ice("all", server{"alice", day, v6}), problem(403, "gateway"), &chartGateways},
	}
}

// deleted are requests to a service whose only gateway was deleted.
func deleted() []row {
	return []row{
		refused("/?service=turn&namespace=calls&gateway=beta", 404, "gateway"),
		refused("/ice?service=turn", 404, ""),
	}
}

// moved are requests to a service with the environment variable STUNNER_PUBLIC_ADDR=192.0.2.99.
func moved() []row {
	return []row{
		same(alpha+"&listener=udp&username=alice", turn("alice", day, "turn:192.0.2.99:3478?transport=udp")),
		same(alphas+"&listener=tls&username=alice",
			ice("all", server{"alice", day, "turns:192.0.2.99:443?transport=tcp"})),
		same(alpha+"&listener=udp&username=alice&public-addr=192.0.2.44",
			turn("alice", day, "turn:192.0.2.44:3478?transport=udp")),
	}
}
