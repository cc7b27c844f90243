package offload

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/netlink"
)

const (
	// sweepInterval is how often rested slots are made available, and interfaces are listed if the kernel does not
	// report their changes.
	sweepInterval = time.Second
	// changeInterval bounds the reactions to changes of the network.
	changeInterval = 100 * time.Millisecond
)

// changes are the netlink groups of changes that may change the way to a client or peer. The last is RTNLGRP_IPV6_RULE,
// which has no RTMGRP constant.
const changes = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV4_RULE |
	unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV6_ROUTE | 1<<(unix.RTNLGRP_IPV6_RULE-1)

// follow attaches the programs to the interfaces, and starts a goroutine that follows changes of the network.
func (f *Offload) follow() error {
	ctx, stop := context.WithCancel(context.Background())
	events, err := netlink.Subscribe(ctx, changes)
	if err != nil {
		f.log.Info("poll the interfaces of this host", "interval", sweepInterval, "error", err)
	}
	if err := f.attachAll(); err != nil {
		stop()
		return err
	}
	f.stop, f.done = stop, make(chan struct{})
	go func() {
		defer close(f.done)
		tick := time.NewTicker(sweepInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case _, open := <-events:
				if !open {
					events = nil
				}
				f.changed()
				select {
				case <-ctx.Done():
				case <-time.After(changeInterval):
					f.changed() // a packet that was routed before the change may have been recorded after it
				}
			case now := <-tick.C:
				f.table.sweep(now)
				f.warnings.log(f.log, f.exhausted.Load(), f.options.MaxBindings, now)
				if events == nil {
					f.changed()
				}
			}
		}
	}()
	return nil
}

func (f *Offload) changed() {
	f.table.relearn() // first, because a list of interfaces waits while the kernel removes one
	if err := f.attachAll(); err != nil {
		f.log.Warn("cannot list the interfaces of this host", "error", err)
	}
	f.table.relearn()
}

// attachAll attaches the programs to new interfaces, and removes them from interfaces that are no longer wanted.
func (f *Offload) attachAll() error {
	links, err := listLinks()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted, failed := map[int]string{}, map[string]string{}
	for _, l := range links {
		named := slices.Contains(f.options.Interfaces, l.name)
		switch why := l.unsuitable(links); {
		case why == "" && (named || len(f.options.Interfaces) == 0):
			wanted[l.index] = l.name
		case named:
			failed[l.name] = why
		}
	}
	for index, a := range f.attached {
		if name, ok := wanted[index]; ok {
			a.name = name
			continue
		}
		if err := a.detach(); err != nil {
			f.log.Warn("cannot remove programs from an interface", "interface", a.name, "error", err)
		}
		delete(f.attached, index)
		f.log.Info("interface removed from the in-kernel path", "interface", a.name)
	}
	for index, name := range wanted {
		if f.attached[index] != nil {
			continue
		}
		a, err := f.kernel.attach(index, name, f.options.mechanisms)
		switch {
		case err == nil:
			f.attached[index] = a
			f.log.Info("interface added to the in-kernel path", "interface", name, "mechanism", a.mechanism)
		case errors.Is(err, unix.ENODEV): // removed meanwhile
		default:
			failed[name] = err.Error()
			if f.failed[name] != err.Error() {
				f.log.Warn("interface cannot be added to the in-kernel path", "interface", name, "error", err)
			}
		}
	}
	f.failed = failed
	return nil
}
