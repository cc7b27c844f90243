package discovery

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Bounds of lists of peers.
const (
	// peersInterval is the minimum time between two lists of peers that a server sends over one stream.
	peersInterval = 200 * time.Millisecond
	maxPeers      = 10_000
	maxPeerKeys   = 8
)

// peersPrefix is the start of every frame with a list of peers. No config starts with it.
var peersPrefix = []byte(`{"peers":`)

// peersKey is the key of a list of peers in a latestQueue. No id of a config contains its first byte.
const peersKey = "\x00peers"

// Peers is the list of the dataplane pods of one Gateway that forward datagrams to each other, with the keys of that
// traffic. A server sends it to a dataplane pod that has reported its own address (Report.Peer).
type Peers struct {
	// Generation is the Unix time in milliseconds at which the server made the list. It grows with every list of one
	// server. The generations of two servers differ by their clocks too, so a client does not order lists by it: the
	// list that was received last is in force.
	Generation uint64 `json:"generation"`
	// Keys are the keys of the Gateway, the newest first. Each of them decrypts.
	Keys []PeerKey `json:"keys"`
	// Pods are sorted by name. They include the pod that receives the list.
	Pods []Peer `json:"pods"`
	// Problem says why there are no keys and no pods. It is empty if there are keys and pods.
	Problem string `json:"problem,omitempty"`
}

// PeerKey is a key of the traffic between the pods of one Gateway.
type PeerKey struct {
	ID     uint8      `json:"id"`
	Secret PeerSecret `json:"key"`
}

// Peer is a dataplane pod to which other pods of its Gateway forward datagrams.
type Peer struct {
	Pod     string         `json:"pod"`
	Address netip.AddrPort `json:"address"`
	// Other is the address of the pod in the other family; the zero Addr if the pod has addresses of one family.
	Other    netip.Addr `json:"other,omitzero"`
	Sender   Sender     `json:"sender"`
	Draining bool       `json:"draining,omitempty"`
}

// Sender identifies one run of a process among the peers of its Gateway. A process chooses it at random at each start.
// Its text is 16 hexadecimal digits.
type Sender [8]byte

// MarshalText implements encoding.TextMarshaler.
func (s Sender) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, s[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Sender) UnmarshalText(text []byte) error {
	if n, err := hex.Decode(s[:], text[:min(len(text), 2*len(s))]); err != nil || n != len(s) || len(text) != 2*n {
		return errors.New("sender: write 16 hexadecimal digits")
	}
	return nil
}

// String returns the text of the sender.
func (s Sender) String() string { return hex.EncodeToString(s[:]) }

// PeerSecret is the value of a PeerKey. It is printed as <redacted>; in JSON it is base64.
type PeerSecret [32]byte

// String returns <redacted>.
func (PeerSecret) String() string { return "<redacted>" }

// GoString returns <redacted>.
func (PeerSecret) GoString() string { return "<redacted>" }

// MarshalText implements encoding.TextMarshaler.
func (s PeerSecret) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, s[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *PeerSecret) UnmarshalText(text []byte) error {
	decoded, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil || len(decoded) != len(s) {
		return fmt.Errorf("key: write %d bytes in base64", len(s))
	}
	copy(s[:], decoded)
	return nil
}

// Validate returns an error that names the first invalid field.
func (p Peers) Validate() error {
	if len(p.Pods) > maxPeers || len(p.Keys) > maxPeerKeys {
		return fmt.Errorf("validate peers: %d pods and %d keys: at most %d and %d are possible", len(p.Pods), len(p.Keys),
			maxPeers, maxPeerKeys)
	}
	keys, senders := map[uint8]bool{}, map[Sender]bool{}
	for i, k := range p.Keys {
		if keys[k.ID] {
			return fmt.Errorf("validate peers: keys[%d].id: %d is not unique", i, k.ID)
		}
		keys[k.ID] = true
	}
	for i, peer := range p.Pods {
		if err := peer.validate(); err != nil {
			return fmt.Errorf("validate peers: pods[%d].%w", i, err)
		}
		if senders[peer.Sender] {
			return fmt.Errorf("validate peers: pods[%d].sender: %s is not unique", i, peer.Sender)
		}
		senders[peer.Sender] = true
	}
	return nil
}

func (p Peer) validate() error {
	switch {
	case p.Pod == "" || len(p.Pod) > reportText:
		return fmt.Errorf("pod: write a name of 1 to %d bytes", reportText)
	case p.Address.Port() == 0 || !ofPod(p.Address.Addr()):
		return errors.New("address: write the IP address of the pod and a port, without a zone")
	case p.Other.IsValid() && !ofPod(p.Other):
		return errors.New("other: write an IP address of the pod, without a zone")
	case p.Sender == Sender{}:
		return errors.New("sender: write the 16 hexadecimal digits that the process has chosen")
	}
	return nil
}

// ofPod reports whether a pod can have an address.
func ofPod(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" && !a.Is4In6()
}

// parsePeers parses and validates a frame with a list of peers.
func parsePeers(frame []byte) (Peers, error) {
	var f peersFrame
	if err := json.Unmarshal(frame, &f); err != nil {
		return Peers{}, fmt.Errorf("read peers: %w", err)
	}
	return f.Peers, f.Peers.Validate()
}

type peersFrame struct {
	Peers Peers `json:"peers"`
}

// AsPeer returns the pod of a report as a member of Peers. It returns an error if the report has no valid Peer and
// Sender.
func (r Report) AsPeer() (Peer, error) {
	p := Peer{Pod: r.Pod, Draining: r.Draining}
	address, err := netip.ParseAddrPort(r.Peer)
	if err != nil {
		return Peer{}, errors.New("peer: write ADDRESS:PORT")
	}
	p.Address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
	if err := p.Sender.UnmarshalText([]byte(r.Sender)); err != nil {
		return Peer{}, err
	}
	return p, p.validate()
}

// reportsPeer reports whether the client has reported an address for forwarded datagrams.
func (c *client) reportsPeer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.Peer != "" {
			return true
		}
	}
	return false
}

// receivePeers delivers a list of peers. It drops an invalid list, so that the previous list stays in force.
func (c *client) receivePeers(w *watch, frame []byte) {
	if !c.reportsPeer() {
		return
	}
	p, err := parsePeers(frame)
	if err != nil {
		c.log.Warn("list of peers rejected, keep the last one", "source", c.String(), "error", err)
		return
	}
	w.events.put(peersKey, Event{ID: string(c.want), Peers: &p})
}

func isPeers(frame []byte) bool { return bytes.HasPrefix(frame, peersPrefix) }
