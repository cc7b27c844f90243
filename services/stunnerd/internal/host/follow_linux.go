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

// pollInterval is how often the addresses are read if the kernel does not report changes, for example in a sandbox
// without netlink sockets.
const pollInterval = 5 * time.Second

// Follow calls changed with the sorted addresses of this host, at the start and after every change. It returns when ctx
// ends.
func Follow(ctx context.Context, log *slog.Logger, changed func([]netip.Addr)) {
	follow(ctx, log, Addresses, listen, changed)
}

// follow implements Follow with replaceable functions. read returns the addresses of the host. subscribe returns a
// channel of possible changes, which is closed if the subscription fails.
func follow(
	ctx context.Context, log *slog.Logger, read func() ([]netip.Addr, error),
	subscribe func(context.Context) (<-chan struct{}, error), changed func([]netip.Addr),
) {
	events, err := subscribe(ctx)
	if err != nil {
		log.Info("poll the addresses of this host", "interval", pollInterval, "error", err)
	}
	interval := time.NewTicker(pollInterval)
	defer interval.Stop()
	if events != nil {
		interval.Stop()
	}
	var last []netip.Addr
	known, failed := false, false
	for {
		now, err := read()
		slices.SortFunc(now, netip.Addr.Compare)
		switch {
		case err != nil && !failed:
			log.Warn("cannot read the addresses of this host, keep the previous ones", "error", err)
		case err == nil && (!known || !slices.Equal(now, last)):
			known, last = true, now
			changed(now)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case _, open := <-events:
			if !open && ctx.Err() == nil {
				log.Warn("the kernel no longer reports changed addresses, poll them", "interval", pollInterval)
				events = nil
				interval.Reset(pollInterval)
			}
		case <-interval.C:
		}
	}
}

// listen opens a netlink socket for changes of addresses (rtnetlink(7)). Each message causes an event. Its content is
// not used, because the addresses are read again.
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
	events := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		defer close(events)
		defer func() { _ = socket.Close() }()
		defer stop()
		buffer := make([]byte, 1<<13)
		for {
			// ENOBUFS means that messages were lost, so addresses may have changed.
			if _, err := socket.Read(buffer); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}()
	return events, nil
}
