package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// rereadEvery is how often the addresses are read where the kernel does not tell of changes, as in a sandbox that refuses netlink sockets.
const rereadEvery = 5 * time.Second

// Follow calls changed with the addresses of this host, sorted, at the start and whenever they are others. It returns when ctx ends.
func Follow(ctx context.Context, log *slog.Logger, changed func([]netip.Addr)) {
	follow(ctx, log, Addresses, listen, changed)
}

// follow reads the addresses with read. events opens a channel that says when they may have changed, and is closed when no more can be heard.
func follow(ctx context.Context, log *slog.Logger, read func() ([]netip.Addr, error), events func(context.Context) (<-chan struct{}, error), changed func([]netip.Addr)) {
	heard, err := events(ctx)
	if err != nil {
		log.Info("read the addresses of this host at intervals", "interval", rereadEvery, "error", err)
	}
	interval := time.NewTicker(rereadEvery)
	defer interval.Stop()
	if heard != nil {
		interval.Stop()
	}
	var last []netip.Addr
	told, failed := false, false
	for {
		now, err := read()
		slices.SortFunc(now, netip.Addr.Compare)
		switch {
		case err != nil && !failed:
			log.Warn("keep the addresses of this host that were read last", "error", err)
		case err == nil && (!told || !slices.Equal(now, last)):
			told, last = true, now
			changed(now)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case _, open := <-heard:
			if !open && ctx.Err() == nil {
				log.Warn("the kernel tells no more of changed addresses: read them at intervals", "interval", rereadEvery)
				heard = nil
				interval.Reset(rereadEvery)
			}
		case <-interval.C:
		}
	}
}

// listen opens a netlink socket for changes of addresses (rtnetlink(7)). What the messages say is of no interest: the addresses are read
// again, and several messages may come to one reading.
func listen(ctx context.Context) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	group := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR}
	if err := unix.Bind(fd, group); err != nil {
		return nil, errors.Join(fmt.Errorf("join netlink groups: %w", err), socket.Close())
	}
	heard := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		defer close(heard)
		defer func() { _ = socket.Close() }()
		defer stop()
		buffer := make([]byte, 1<<13)
		for {
			// ENOBUFS says that messages were lost, which is a change like any other.
			if _, err := socket.Read(buffer); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case heard <- struct{}{}:
			default:
			}
		}
	}()
	return heard, nil
}
