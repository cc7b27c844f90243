// Package netlink reports that the kernel has changed the network of this host.
package netlink

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Subscribe opens a netlink socket for changes of the network (rtnetlink(7)). groups is a set of RTMGRP constants. Each
// message causes an event. Events that the caller has not received yet are merged into one. The channel is closed when
// ctx ends, or if the kernel no longer reports changes. If observe is not nil, it is called with each datagram before
// the event, and with an empty one if messages were lost. It must not retain the datagram.
func Subscribe(ctx context.Context, groups uint32, observe func(datagram []byte)) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("join netlink groups: %w", err), socket.Close())
	}
	events := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		defer close(events)
		defer func() { _ = socket.Close() }()
		defer stop()
		buffer := make([]byte, 1<<13)
		for {
			n, err := socket.Read(buffer)
			switch {
			case errors.Is(err, unix.ENOBUFS): // messages were lost, so there may be a change
				n = 0
			case err != nil:
				return
			}
			if observe != nil {
				observe(buffer[:n:n])
			}
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}()
	return events, nil
}
