package host

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
)

var discard = slog.New(slog.DiscardHandler)

// T-03: added and removed addresses of the host are reported at once.
func TestAddressesAreFollowed(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	told := make(chan []netip.Addr)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Follow(ctx, discard, func(now []netip.Addr) {
			select {
			case told <- now:
			case <-ctx.Done():
			}
		})
	}()
	// With netlink, a change is reported before the polling interval has passed.
	within := 3 * time.Second
	until := func(what string, good func([]netip.Addr) bool) {
		t.Helper()
		for late := time.After(within); ; {
			select {
			case now := <-told:
				if good(now) {
					return
				}
			case <-late:
				t.Fatalf("%s: not told within %v", what, within)
			}
		}
	}
	has := func(text string, want bool) func([]netip.Addr) bool {
		return func(now []netip.Addr) bool { return slices.Contains(now, netip.MustParseAddr(text)) == want }
	}
	until("loopback", has("127.0.0.1", true))
	testnet.IP(t, "address add 198.51.100.1/32 dev lo")
	until("an IPv4 address that comes", has("198.51.100.1", true))
	testnet.IP(t, "address add 2001:db8::1/128 dev lo")
	until("an IPv6 address that comes", has("2001:db8::1", true))
	testnet.IP(t, "address delete 198.51.100.1/32 dev lo")
	until("an address that goes", has("198.51.100.1", false))
	stop()
	<-ended
}

// If the addresses cannot be read, the previous addresses are kept, and one warning is logged.
func TestAddressesThatCannotBeReadAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var reads atomic.Int32
		read := func() ([]netip.Addr, error) {
			if reads.Add(1) == 1 {
				return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
			}
			return nil, errors.New("operation not permitted")
		}
		refused := func(context.Context) (<-chan struct{}, error) { return nil, errors.New("operation not permitted") }
		told := 0
		ctx, stop := context.WithCancel(t.Context())
		go follow(
			ctx, slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})), read, refused,
			func([]netip.Addr) { told++ },
		)
		time.Sleep(10 * pollInterval)
		stop()
		synctest.Wait()
		if told != 1 || reads.Load() < 10 || strings.Count(out.String(), "level=WARN") != 1 {
			t.Errorf("%d readings, told %d times, log:\n%s", reads.Load(), told, &out)
		}
	})
}

// Without netlink, or after it fails, the addresses are polled.
func TestAddressesAreReadAtIntervalsWithoutNetlink(t *testing.T) {
	for name, events := range map[string]func(context.Context) (<-chan struct{}, error){
		"refused": func(context.Context) (<-chan struct{}, error) { return nil, errors.New("operation not permitted") },
		"lost": func(context.Context) (<-chan struct{}, error) {
			closed := make(chan struct{})
			close(closed)
			return closed, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reads atomic.Int32
				var both atomic.Bool
				read := func() ([]netip.Addr, error) {
					reads.Add(1)
					addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
					if both.Load() {
						return addrs, nil
					}
					return addrs[:1], nil
				}
				var told [][]netip.Addr
				ctx, stop := context.WithCancel(t.Context())
				go follow(ctx, discard, read, events, func(addrs []netip.Addr) { told = append(told, addrs) })
				synctest.Wait()
				both.Store(true)
				time.Sleep(pollInterval + time.Millisecond)
				synctest.Wait()
				if len(told) != 2 || len(told[1]) != 2 {
					t.Errorf("after an interval, told: %v", told)
				}
				time.Sleep(10 * pollInterval)
				synctest.Wait()
				if len(told) != 2 || reads.Load() < 12 || reads.Load() > 13 {
					t.Errorf("%d readings, told: %v", reads.Load(), told)
				}
				stop()
				synctest.Wait()
			})
		})
	}
}
