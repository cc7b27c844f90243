// Command pionclient is a TURN client of pion/turn v5. It has a module of its own, because the workspace tests the
// versions of pion that stunnerd is released with. go.mod has the current release. before.mod has the last release that
// sends attributes after MESSAGE-INTEGRITY.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/logging"
	"github.com/pion/turn/v5"
)

// timeout limits each step.
const timeout = 30 * time.Second

type options struct {
	server, transport, user, password, realm, peer, denied string
	family, messages                                       int
}

func main() {
	var o options
	flag.StringVar(&o.server, "server", "", "`ADDRESS:PORT` of the server")
	flag.StringVar(&o.transport, "transport", "udp", "udp, tcp, tls or dtls")
	flag.StringVar(&o.user, "user", "", "user name")
	flag.StringVar(&o.password, "password", "", "password")
	flag.StringVar(&o.realm, "realm", "", "realm")
	flag.StringVar(&o.peer, "peer", "", "`ADDRESS:PORT` of a peer that echoes")
	flag.StringVar(&o.denied, "denied", "", "`ADDRESS:PORT` of a peer that the server refuses, or none")
	flag.IntVar(&o.family, "family", 0, "requested family of the relay: 4, 6, or 0 for that of the local address")
	flag.IntVar(&o.messages, "messages", 20, "number of messages to the peer")
	flag.Parse()
	if err := run(o); err != nil {
		log.Fatal(err)
	}
}

// run allocates, sends messages to the peer and receives their echoes, and ends the allocation. It prints a line for
// each step.
func run(o options) error {
	conn, err := dial(o)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	client, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: o.server, TURNServerAddr: o.server, Conn: conn, Username: o.user, Password: o.password,
		Realm: o.realm, LoggerFactory: logging.NewDefaultLoggerFactory(),
		RequestedAddressFamily: map[int]turn.RequestedAddressFamily{
			4: turn.RequestedAddressFamilyIPv4, 6: turn.RequestedAddressFamilyIPv6,
		}[o.family],
	})
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Listen(); err != nil {
		return err
	}
	mapped, err := client.SendBindingRequest()
	if err != nil {
		return fmt.Errorf("binding request: %w", err)
	}
	fmt.Println("mapped", mapped)
	relay, err := client.Allocate()
	if err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	fmt.Println("relay", relay.LocalAddr())
	if err := talk(client, relay, o); err != nil {
		return err
	}
	if err := relay.Close(); err != nil {
		return fmt.Errorf("end the allocation: %w", err)
	}
	fmt.Println("closed")
	return nil
}

// talk sends messages, each after the echo of the previous one has arrived. The first messages are sent in Send
// indications, and the others in the channel that the client binds meanwhile.
func talk(client *turn.Client, relay net.PacketConn, o options) error {
	if o.denied != "" {
		denied, err := net.ResolveUDPAddr("udp", o.denied)
		if err != nil {
			return err
		}
		fmt.Println("denied", client.CreatePermission(denied) != nil)
	}
	peer, err := net.ResolveUDPAddr("udp", o.peer)
	if err != nil {
		return err
	}
	if err := client.CreatePermission(peer); err != nil {
		return fmt.Errorf("create permission: %w", err)
	}
	echoed, buf := 0, make([]byte, 1500)
	for i := range o.messages {
		want := fmt.Sprint("message ", i)
		if _, err := relay.WriteTo([]byte(want), peer); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		if err := relay.SetReadDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		n, from, err := relay.ReadFrom(buf)
		if err != nil {
			return fmt.Errorf("receive echo %d: %w", i, err)
		}
		if string(buf[:n]) == want && from.String() == peer.String() {
			echoed++
		}
	}
	fmt.Println("echoed", echoed)
	return nil
}

// dial connects to the server. The certificate is not under test.
func dial(o options) (net.PacketConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	host, _, err := net.SplitHostPort(o.server)
	if err != nil {
		return nil, err
	}
	switch o.transport {
	case "udp":
		return net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	case "tcp":
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", o.server)
		if err != nil {
			return nil, err
		}
		return turn.NewSTUNConn(conn), nil
	case "tls":
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", o.server)
		if err != nil {
			return nil, err
		}
		return turn.NewSTUNConn(conn), nil
	case "dtls":
		server, err := net.ResolveUDPAddr("udp", o.server)
		if err != nil {
			return nil, err
		}
		socket, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, err
		}
		conn, err := dtls.ClientWithOptions(socket, server, dtls.WithInsecureSkipVerify(true))
		if err != nil {
			return nil, err
		}
		if err := conn.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		return turn.NewSTUNConn(conn), nil
	}
	return nil, fmt.Errorf("transport %q is unknown: use udp, tcp, tls or dtls", o.transport)
}
