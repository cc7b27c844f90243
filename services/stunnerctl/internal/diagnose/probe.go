package diagnose

import (
	"fmt"
	"net/netip"
	"time"
)

// Probe is the result of the packets that were sent to one Gateway. Package probe sends them.
type Probe struct {
	URLs []ProbedURL `json:"urls,omitempty"`
	// OmittedURLs is the number of URLs that were not tested, because there are many.
	OmittedURLs int         `json:"omittedURLs,omitempty"`
	Pods        []ProbedPod `json:"pods,omitempty"`
	// PodsUntested says why no pod was tested directly. It is empty if pods were tested.
	PodsUntested string `json:"podsUntested,omitempty"`
	// Credential says where the credential of the allocations is from, such as "the auth service".
	Credential string `json:"credential,omitempty"`
	// CredentialError says why there is no credential. It is empty if there is one.
	CredentialError string          `json:"credentialError,omitempty"`
	Backends        []ProbedBackend `json:"backends,omitempty"`
	// OmittedBackends is the number of backends that were not tested, because there are many, or because they are no
	// single address or have no known port.
	OmittedBackends int `json:"omittedBackends,omitempty"`
	// Error says why nothing was tested. It is empty if something was tested.
	Error string `json:"error,omitempty"`
}

// ProbeResult is the result of the test of an address.
type ProbeResult string

// The results of tests.
const (
	// ProbeAnswered means that a STUN response arrived.
	ProbeAnswered ProbeResult = "answered"
	// ProbeNoAnswer means that nothing arrived in time.
	ProbeNoAnswer ProbeResult = "no answer"
	// ProbeRefused means that a host refused the connection: TCP RST, or ICMP port unreachable.
	ProbeRefused ProbeResult = "refused"
	// ProbeRejected means that a firewall rejected the packets: ICMP administratively prohibited.
	ProbeRejected ProbeResult = "rejected"
	// ProbeUnreachable means that a router reported by ICMP that it has no route, or that the host does not reply.
	ProbeUnreachable ProbeResult = "unreachable"
	// ProbeUndelivered means one of the previous three: the dataplane has reported an ICMP message without details.
	ProbeUndelivered ProbeResult = "not delivered"
	// ProbeUnroutable means that the testing machine has no route, so that the test says nothing about the Gateway.
	ProbeUnroutable ProbeResult = "no route from here"
	// ProbeNoName means that the host name of the URL was not resolved.
	ProbeNoName ProbeResult = "name not resolved"
	// ProbeHandshake means that the TLS or DTLS handshake failed, although a connection was made.
	ProbeHandshake ProbeResult = "handshake failed"
	// ProbeNotSTUN means that the answer was not a STUN message.
	ProbeNotSTUN ProbeResult = "no STUN"
	// ProbeDenied means that the Gateway refused the permission for a backend.
	ProbeDenied ProbeResult = "denied"
	// ProbeFailed means that the request got another error response, or none.
	ProbeFailed ProbeResult = "failed"
)

// ProbedURL is the test of a public URL at one address.
type ProbedURL struct {
	// Listener is the name of the listener in the Gateway.
	Listener string `json:"listener"`
	// URL is the TURN URI that clients receive, and Host the host in it.
	URL  string `json:"url"`
	Host string `json:"host"`
	// Transport is udp or tcp, and Secure is set for DTLS and TLS.
	Transport string `json:"transport"`
	Secure    bool   `json:"secure,omitempty"`
	// Address is the address that was tested; invalid if the name was not resolved.
	Address netip.AddrPort `json:"address,omitzero"`
	Result  ProbeResult    `json:"result"`
	// Detail is the text of the error.
	Detail string `json:"detail,omitempty"`
	// Sent is the number of new connections, or over UDP of source ports. Answered is how many of them got an answer.
	Sent     int `json:"sent"`
	Answered int `json:"answered"`
	// Seconds is how long the test has waited for an answer.
	Seconds float64 `json:"seconds,omitempty"`
	// Long is the test of requests that are as long as packets of media.
	Long ProbedLong `json:"long,omitzero"`
	// Train are requests over UDP that were not repeated.
	Train ProbedTrain `json:"train,omitzero"`
	// Mapping describes how a NAT has changed the mapping of a client during a pause. It is nil if there is no NAT, or
	// if the NAT has kept the mapping.
	Mapping *LostMapping `json:"mapping,omitempty"`
	// TLSAtBalancer is set if a load balancer ends TLS, so that the certificate is not one of the Gateway.
	TLSAtBalancer bool               `json:"tlsAtBalancer,omitempty"`
	Certificate   *ServedCertificate `json:"certificate,omitempty"`
	Allocation    *ProbedAllocation  `json:"allocation,omitempty"`
}

// ProbedLong is the test of long packets. It runs only after short packets to the same address were answered.
type ProbedLong struct {
	// Bytes is the length of a packet without the headers of IP and its transport.
	Bytes    int `json:"bytes"`
	Sent     int `json:"sent"`
	Answered int `json:"answered"`
}

// Passes reports whether long packets were sent, and all of them were answered.
func (l ProbedLong) Passes() bool { return l.Sent > 0 && l.Answered == l.Sent }

// ProbedTrain is the test of an even stream of short packets, each of which is sent once.
type ProbedTrain struct {
	Sent     int `json:"sent"`
	Returned int `json:"returned"`
	// Milliseconds is the median of the times between packets and their answers.
	Milliseconds float64 `json:"milliseconds,omitempty"`
}

// lossy reports whether so many packets are lost that gaps are audible.
func (t ProbedTrain) lossy() bool { return (t.Sent-t.Returned)*20 > t.Sent }

// lost returns a text with the number of lost packets.
func (t ProbedTrain) lost() string {
	return fmt.Sprintf("%d of %d packets (%d %%)", t.Sent-t.Returned, t.Sent, (t.Sent-t.Returned)*100/t.Sent)
}

// slow reports whether answers are too slow for a conversation: 400 ms in one direction are too much for most uses
// (ITU-T G.114).
func (t ProbedTrain) slow() bool { return t.Milliseconds > 800 }

// LostMapping is a mapping that a NAT has deleted between two packets of a client.
type LostMapping struct {
	// Seconds is the pause.
	Seconds float64 `json:"seconds"`
	// Before and After are the addresses of the client that the Gateway has received. After is invalid if nothing was
	// answered after the pause.
	Before netip.AddrPort `json:"before"`
	After  netip.AddrPort `json:"after,omitzero"`
}

// ServedCertificate describes the certificates that a server has sent in a handshake.
type ServedCertificate struct {
	Subject   string    `json:"subject"`
	Issuer    string    `json:"issuer"`
	Names     []string  `json:"names,omitempty"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// Sent is the number of certificates in the chain that was sent.
	Sent       int  `json:"sent"`
	SelfSigned bool `json:"selfSigned,omitempty"`
	// Trusted is set if the chain leads to a CA of the machine of the test.
	Trusted bool `json:"trusted,omitempty"`
	// IssuerURL is where the certificate of the issuer is published (RFC 5280 §4.2.2.1), or empty.
	IssuerURL string `json:"issuerURL,omitempty"`
	// NameMatches is set if the certificate is valid for the host of the URL.
	NameMatches bool `json:"nameMatches,omitempty"`
	// ExpiredIssuer is the subject of a sent CA certificate that is expired, unless the chain is trusted without it.
	ExpiredIssuer string `json:"expiredIssuer,omitempty"`
}

// ProbedAllocation is the result of an Allocate request.
type ProbedAllocation struct {
	// Relay is the relayed address; invalid if there is none.
	Relay netip.AddrPort `json:"relay,omitzero"`
	// Code is the code of the error response, or 0.
	Code int `json:"code,omitempty"`
	// Error is the problem if there is no error response.
	Error string `json:"error,omitempty"`
}

// ProbedPod is a direct test of a pod, past load balancers and the addresses of clients.
type ProbedPod struct {
	Pod string `json:"pod"`
	// Listener is the name of the tested listener; empty for the health endpoint.
	Listener string      `json:"listener,omitempty"`
	Result   ProbeResult `json:"result"`
	Detail   string      `json:"detail,omitempty"`
}

// ProbedBackend is the test of a backend through the Gateway.
type ProbedBackend struct {
	Listener string `json:"listener"`
	// Route is NAMESPACE/NAME of the route with the backend.
	Route string         `json:"route"`
	Peer  netip.AddrPort `json:"peer"`
	// OnePort is set if the route allows only the port of Peer. Otherwise Peer has the first of several allowed ports.
	OnePort bool        `json:"onePort,omitempty"`
	Result  ProbeResult `json:"result"`
	Detail  string      `json:"detail,omitempty"`
	// Sent and Returned count datagrams.
	Sent     int `json:"sent"`
	Returned int `json:"returned"`
	// Code is the code of a STUN error response of the backend, or 0.
	Code int `json:"code,omitempty"`
	// Long is the test of datagrams that are as long as packets of media. None are sent if the path to the Gateway
	// loses packets of this length.
	Long ProbedLong `json:"long,omitzero"`
	// Train are datagrams at an even pace. They are sent after the first datagrams were answered.
	Train ProbedTrain `json:"train,omitzero"`
	// Elsewhere are the source addresses of datagrams that arrived at the relay, if no packet was sent to these
	// addresses.
	Elsewhere string `json:"elsewhere,omitempty"`
}
