package env

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
)

// wait is how long a client waits for an expected datagram. silence is how long it waits until it concludes that no
// datagram arrives.
const (
	wait    = 5 * time.Second
	silence = time.Second
)

// Client is a client over UDP with one allocation, which sends single requests.
type Client struct {
	*ask.Client
	Relay netip.AddrPort
	next  uint16 // number of the next channel
}

// firstChannel is the lowest channel number (RFC 8656 §12).
const firstChannel = 0x4000

// Allocate makes an allocation at an address of a UDP listener. With a family, it requests a relay of that family
// (REQUESTED-ADDRESS-FAMILY, RFC 8656 §18.8); with the invalid address, it requests no family.
func (e *Env) Allocate(ctx context.Context, l *Listener, at netip.AddrPort, family netip.Addr, user string) (*Client, error) {
	username, password, err := l.Gateway.Credential(ctx, user)
	if err != nil {
		return nil, err
	}
	return e.AllocateAs(ctx, at, family, username, password)
}

// AllocateAs is Allocate with a credential.
func (e *Env) AllocateAs(
	ctx context.Context, at netip.AddrPort, family netip.Addr, username, password string,
) (c *Client, err error) {
	from := e.Net.Client[0]
	if at.Addr().Is6() {
		from = e.Net.Client[1]
	}
	c = &Client{next: firstChannel}
	e.Net.Clients.Do(func() { c.Client, err = ask.Dial(from, at, username, password) })
	if err != nil {
		return nil, err
	}
	attributes := []stun.Setter{ask.UDP()}
	if family.IsValid() {
		attributes = append(attributes, ask.Family(family))
	}
	answer, err := c.request(ctx, stun.MethodAllocate, attributes...)
	if err == nil {
		c.Relay, err = ask.Relayed(answer)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("allocate at %s: %w", at, err)
	}
	return c, nil
}

// request sends a request until its response arrives. An error response is an error.
func (c *Client) request(ctx context.Context, method stun.Method, attributes ...stun.Setter) (*stun.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	answer, _, err := c.Do(ctx, method, attributes...)
	if err != nil {
		return nil, err
	}
	if code := ask.Code(answer); code != 0 {
		if code == stun.CodeForbidden {
			return nil, fmt.Errorf("%s: error %d: %w", method, code, ErrForbidden)
		}
		return nil, fmt.Errorf("%s: error %d", method, code)
	}
	return answer, nil
}

// Bind binds a channel to a peer, and returns its number.
func (c *Client) Bind(ctx context.Context, peer netip.AddrPort) (channel uint16, err error) {
	channel = c.next
	c.next++
	_, err = c.request(ctx, stun.MethodChannelBind, ask.Channel(channel), ask.Peer(peer))
	return channel, err
}

// Indicate sends data to a peer by a Send indication, which has no answer.
func (c *Client) Indicate(peer netip.AddrPort, data string) error {
	return c.Send(ask.SendIndication(peer, []byte(data)))
}

// Release deletes the allocation.
func (c *Client) Release(ctx context.Context) {
	_, _ = c.request(ctx, stun.MethodRefresh, ask.Lifetime(0)) // the allocation expires in any case
	c.Close()
}

// errStray reports data of a peer to which the client has no channel.
var errStray = errors.New("data of a peer without a channel arrives")

// exchange sends data by a channel until an answer by this channel arrives, or the time is over. A Data indication is
// an error: no peer without a channel sends to the client.
func (c *Client) exchange(channel uint16, data string, within time.Duration) (answer string, err error) {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		if err := c.Send(ask.ChannelData(channel, []byte(data))); err != nil {
			return "", err
		}
		got, err := c.Receive(min(200*time.Millisecond, time.Until(deadline)))
		switch m := (&stun.Message{Raw: got}); {
		case err != nil:
		case stun.IsMessage(got) && m.Decode() == nil && m.Type.Class == stun.ClassIndication:
			return "", fmt.Errorf("%w: %s", errStray, m)
		case len(got) > 4 && binary.BigEndian.Uint16(got) == channel:
			return string(got[4:]), nil
		}
	}
	return "", errNoAnswer
}

// Exchange sends data by a channel until its echo arrives.
func (c *Client) Exchange(channel uint16, data string) error {
	answer, err := c.exchange(channel, data, wait)
	if err == nil && answer != data {
		err = fmt.Errorf("%q comes back for %q", answer, data)
	}
	return err
}

// errNoAnswer reports that no data has come back.
var errNoAnswer = errors.New("nothing comes back")

// Echo exchanges a datagram with a peer by a relay of the family of the peer.
func (e *Env) Echo(ctx context.Context, l *Listener, peer netip.AddrPort) error {
	c, err := e.Allocate(ctx, l, l.Addresses()[0], peer.Addr(), "family")
	if err != nil {
		return err
	}
	defer c.Release(ctx)
	channel, err := c.Bind(ctx, peer)
	if err != nil {
		return err
	}
	return c.Exchange(channel, "hello")
}

// CallBetweenClients exchanges datagrams between two clients by their relays.
func (e *Env) CallBetweenClients(ctx context.Context, l *Listener) error {
	var clients [2]*Client
	for i := range clients {
		c, err := e.Allocate(ctx, l, l.Addresses()[0], netip.Addr{}, fmt.Sprintf("meets%d", i))
		if err != nil {
			return err
		}
		defer c.Release(ctx)
		clients[i] = c
	}
	var channels [2]uint16
	for i, c := range clients {
		channel, err := c.Bind(ctx, clients[1-i].Relay)
		if err != nil {
			return fmt.Errorf("peer %s: %w", clients[1-i].Relay, err)
		}
		channels[i] = channel
	}
	answered := make(chan error, 1)
	go func() {
		_, err := clients[1].exchange(channels[1], "second", wait)
		answered <- err
	}()
	_, err := clients[0].exchange(channels[0], "first", wait)
	return errors.Join(err, <-answered)
}

// AllocateThroughRelay sends an Allocate request to a peer through a relay of its family, and reports whether the peer
// answers as a TURN server. A peer that the gateway denies does not answer.
func (e *Env) AllocateThroughRelay(ctx context.Context, l *Listener, peer netip.AddrPort) (answered bool, err error) {
	c, err := e.Allocate(ctx, l, l.Addresses()[0], peer.Addr(), "nests")
	if err != nil {
		return false, err
	}
	defer c.Release(ctx)
	channel, err := c.Bind(ctx, peer)
	if errors.Is(err, ErrForbidden) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	request := new(ask.Client).Request(stun.MethodAllocate, ask.UDP())
	answer, err := c.exchange(channel, string(request), silence)
	if errors.Is(err, errNoAnswer) {
		return false, nil
	}
	return stun.IsMessage([]byte(answer)), err
}
