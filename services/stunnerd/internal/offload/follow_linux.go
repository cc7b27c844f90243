package offload

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/netlink"
)

const (
	// sweepInterval is how often slots are made available after their rest time, and how often interfaces are listed if
	// the kernel does not report their changes.
	sweepInterval = time.Second
	// calmInterval is the minimum time between two reactions to changes that affect everything. It is shorter than
	// sweepInterval, so that a reaction is possible at each tick.
	calmInterval = 900 * time.Millisecond
	// changeInterval is the minimum time between two reactions to changes of the network.
	changeInterval = 100 * time.Millisecond
)

// follow attaches the programs to the interfaces, and starts a goroutine that follows changes of the network.
func (f *Offload) follow() error {
	ctx, stop := context.WithCancel(context.Background())
	observed := newChanges()
	events, err := netlink.Subscribe(ctx, changeGroups, observed.observe)
	if err != nil {
		f.log.Info("poll the interfaces of this host", "interval", sweepInterval, "error", err)
	}
	if err := observed.start(); err != nil {
		stop()
		return err
	}
	if err := f.attachAll(); err != nil {
		stop()
		return err
	}
	f.stop, f.done = stop, make(chan struct{})
	go func() {
		defer close(f.done)
		f.react(ctx, events, observed)
	}()
	return nil
}

// react handles the changes of the network until ctx ends. On a node with many pods, changes that affect everything are
// frequent. They are handled at most once every calmInterval, because after each of them the packets of all calls pass
// through user space.
func (f *Offload) react(ctx context.Context, events <-chan struct{}, observed *changes) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	var last time.Time // time of the last change that affected all bindings
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-events:
			if !open {
				events = nil
				observed.observe(nil)
			}
		case now := <-tick.C:
			f.table.sweep(now)
			f.warnings.log(f.log, f.exhausted.Load(), f.options.MaxBindings, now)
			if events == nil {
				observed.observe(nil)
			}
		}
		c := observed.take(time.Since(last) >= calmInterval)
		if c.empty() {
			continue
		}
		if c.everything {
			last = time.Now()
		}
		f.changed(&c)
		select {
		case <-ctx.Done():
		case <-time.After(changeInterval):
			f.table.relearn(&c) // a packet that was routed before the change may have been recorded after the change
		}
	}
}

func (f *Offload) changed(c *change) {
	f.table.relearn(c) // before attachAll, because listing interfaces waits while the kernel removes one
	if !c.links {
		return
	}
	if err := f.attachAll(); err != nil {
		f.log.Warn("cannot list the interfaces of this host", "error", err)
	}
}

// attachAll attaches the programs to new interfaces, and removes them from interfaces that are no longer wanted.
func (f *Offload) attachAll() error {
	links, err := listLinks()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted, failed := map[int]networkLink{}, map[string]string{}
	for _, l := range links {
		named := slices.Contains(f.options.Interfaces, l.name)
		switch why := l.unsuitable(links); {
		case why == "" && (named || len(f.options.Interfaces) == 0):
			wanted[l.index] = l
		case named:
			failed[l.name] = why
		}
	}
	for index, a := range f.attached {
		if l, ok := wanted[index]; ok {
			a.name = l.name
			continue
		}
		if err := a.close(); err != nil {
			f.log.Warn("cannot remove programs from an interface", "interface", a.name, "error", err)
		}
		delete(f.attached, index)
		f.log.Info("interface removed from the in-kernel path", "interface", a.name)
	}
	for index, l := range wanted {
		if f.attached[index] != nil {
			continue
		}
		a, err := f.kernel.attach(index, l.name, f.options.mechanisms)
		if err == nil && f.kernel.collection.Programs["relay_xdp"] != nil {
			if a.noXDP = f.addXDP(a, l); a.noXDP != "" {
				f.log.Warn("XDP is not used at an interface, TC is used instead", "interface", l.name, "reason", a.noXDP)
			}
		}
		switch {
		case err == nil:
			f.attached[index] = a
			f.log.Info("interface added to the in-kernel path", "interface", l.name, "mechanism", a.mechanism)
		case errors.Is(err, unix.ENODEV): // removed meanwhile
		default:
			failed[l.name] = err.Error()
			if f.failed[l.name] != err.Error() {
				f.log.Warn("interface cannot be added to the in-kernel path", "interface", l.name, "error", err)
			}
		}
	}
	f.failed = failed
	return nil
}

// addXDP adds the XDP program to an interface in the mode of its driver. It returns why that is not possible, or "".
//
// The other end of a veth pair receives the frames that the program returns only if it has an XDP program too, which
// this end cannot know. The program of a bond runs at its ports, so the interface of a frame is never the one that the
// other programs have learned.
func (f *Offload) addXDP(a *attachment, l networkLink) (reason string) {
	mode := f.options.xdpMode
	if mode == 0 {
		if mode = link.XDPDriverMode; l.kind == "veth" || l.kind == "bond" {
			return l.kind + " interfaces are not supported"
		}
	}
	switch err := f.kernel.attachXDP(a, l.index, mode); {
	case err == nil:
		return ""
	case errors.Is(err, unix.EOPNOTSUPP):
		return "its driver does not support XDP"
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST):
		return "it has another XDP program"
	default: // such as an MTU that is too large for the driver
		return err.Error()
	}
}
