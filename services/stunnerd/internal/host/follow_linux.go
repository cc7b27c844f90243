package host

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/netlink"
)

// pollInterval is how often the addresses are read if the kernel does not report changes, for example in a sandbox
// without netlink sockets.
const pollInterval = 5 * time.Second

// Follow calls changed with the sorted addresses of this host, at the start and after every change. It returns when ctx
// ends.
func Follow(ctx context.Context, log *slog.Logger, changed func([]netip.Addr)) {
	follow(ctx, log, Addresses, subscribe, changed)
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

// subscribe subscribes to changes of addresses.
func subscribe(ctx context.Context) (<-chan struct{}, error) {
	return netlink.Subscribe(ctx, unix.RTMGRP_IPV4_IFADDR|unix.RTMGRP_IPV6_IFADDR, nil)
}
