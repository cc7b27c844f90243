// Command echo is the media server of the examples and the tests. It echoes WebRTC data channel messages and plain UDP
// datagrams. All WebRTC media uses one UDP port, so that a UDPRoute can name it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

// ready is the line that echo prints to stdout when it accepts requests. It holds the addresses.
type ready struct {
	HTTP  string `json:"http"`
	Media string `json:"media"`
	UDP   string `json:"udp"`
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("echo", flag.ExitOnError)
	signalling := flags.String(
		"http", "127.0.0.1:7000", "address for signalling: POST an SDP offer to /, the response is the SDP answer",
	)
	media := flags.String(
		"media", "127.0.0.1:7001",
		"UDP address for the media of all WebRTC peers; 0.0.0.0 is all IPv4 addresses of the host, [::] all addresses",
	)
	plain := flags.String("udp", "127.0.0.1:7002", "UDP address that echoes datagrams")
	peers := flags.Int("peers", 64, "maximum number of concurrent WebRTC peers")
	idle := flags.Duration("idle", time.Minute, "a WebRTC peer is dropped after this time without a message")
	version := flags.Bool("version", false, "print the version and exit")
	_ = flags.Parse(args) // exits on error
	if *version {
		fmt.Println(telemetry.Version("echo"))
		return nil
	}

	packets, err := net.ListenPacket("udp", *plain)
	if err != nil {
		return fmt.Errorf("listen for datagrams: %w", err)
	}
	defer packets.Close()
	mux, address, err := listenMedia(*media)
	if err != nil {
		return fmt.Errorf("listen for media: %w", err)
	}
	defer mux.Close()
	listener, err := net.Listen("tcp", *signalling)
	if err != nil {
		return fmt.Errorf("listen for signalling: %w", err)
	}
	room := newRoom(mux, *peers, *idle)
	defer room.close()

	line := ready{HTTP: listener.Addr().String(), Media: address, UDP: packets.LocalAddr().String()}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		return fmt.Errorf("write ready line: %w", err)
	}
	go mirror(packets)
	return serve(ctx, listener, room)
}

// serve answers SDP offers until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve signalling: %w", err)
	}
	return nil
}

// mirror echoes datagrams to their sender until the socket is closed.
func mirror(conn net.PacketConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				continue
			}
			return
		}
		_, _ = conn.WriteTo(buf[:n], from) // a send error counts as a lost datagram
	}
}
