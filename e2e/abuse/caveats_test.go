package abuse

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// scoped is a dataplane with route test/a to 127.0.0.1 and test/b to 127.0.0.2, and an echo peer at each.
type scoped struct {
	*harnesstest.Dataplane
	a, b netip.AddrPort
}

func startScoped(t *testing.T) *scoped {
	t.Helper()
	a, b := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	d := &scoped{a: harnesstest.Echo(t, a), b: harnesstest.Echo(t, b)}
	d.Dataplane = harnesstest.StartDataplane(t, filepath.Dir(program), config.Config{
		Auth: harnesstest.Ephemeral(secret), Listeners: harnesstest.Listeners(harness.Loopback),
		Clusters: []config.Cluster{
			{Name: "test/a", Type: config.Static, Endpoints: []string{a.String()}},
			{Name: "test/b", Type: config.Static, Endpoints: []string{b.String()}},
		},
	}, []netip.Addr{a}, "--watch", "--show-users")
	return d
}

func (d *scoped) client(t *testing.T, c credential.Caveats, user string) *ask.Client {
	t.Helper()
	minted, err := d.Config.Auth.Authority().MintWith(c, user, time.Hour, time.Now())
	must(t, err)
	return d.named(t, minted.Username, string(minted.Password))
}

func (d *scoped) named(t *testing.T, username, password string) *ask.Client {
	t.Helper()
	loopback := netip.MustParseAddr(harness.Loopback)
	client, err := ask.Dial(loopback, netip.AddrPortFrom(loopback, uint16(d.Plain)), username, password)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// sign returns the password of any user name.
func sign(username string) string {
	mac := hmac.New(sha1.New, []byte(secret))
	mac.Write([]byte(username))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// A credential is limited by its caveats, in a running dataplane: to the peers of its route, its Gateway, its time, its
// number of allocations and its bytes. The sessions show the user id and the caveats.
func TestCredentialIsLimitedByItsCaveats(t *testing.T) {
	t.Parallel()
	d := startScoped(t)
	limits := credential.Caveats{Routes: []string{"test/a"}, Gateway: d.Config.Admin.Name, Allocations: 1}
	c := d.client(t, limits, "ann")
	if code := codeOf(t, c, stun.MethodAllocate, ask.UDP()); code != 0 {
		t.Fatalf("allocate: %d", code)
	}
	for _, r := range []struct {
		method stun.Method
		attrs  []stun.Setter
		want   stun.ErrorCode
	}{
		{stun.MethodCreatePermission, []stun.Setter{ask.Peer(d.b)}, 403},
		{stun.MethodChannelBind, []stun.Setter{ask.Channel(0x4001), ask.Peer(d.b)}, 403},
		{stun.MethodCreatePermission, []stun.Setter{ask.Peer(d.a)}, 0},
		{stun.MethodChannelBind, []stun.Setter{ask.Channel(0x4000), ask.Peer(d.a)}, 0},
		{stun.MethodRefresh, nil, 0},
	} {
		if code := codeOf(t, c, r.method, r.attrs...); code != r.want {
			t.Errorf("%s: %d, want %d", r.method, code, r.want)
		}
	}
	// A datagram to the peer of another route is dropped, and a datagram to the peer of the named route is echoed.
	must(t, c.Send(ask.SendIndication(d.b, []byte("to b"))))
	must(t, c.Send(ask.ChannelData(0x4000, []byte("to a"))))
	if got, err := c.Receive(timeout); err != nil || !strings.HasSuffix(string(got), "to a") {
		t.Errorf("received %q, %v", got, err)
	}
	if n, err := harness.Metric(t.Context(), d.Metrics, telemetry.Dropped); err != nil || n != 1 {
		t.Errorf("%v datagrams dropped, %v", n, err)
	}
	if code := codeOf(t, d.client(t, limits, "ann"), stun.MethodAllocate, ask.UDP()); code != 486 {
		t.Errorf("a second allocation: %d, want 486", code)
	}
	status, body, err := harness.Get(t.Context(), d.Health+"/sessions")
	var list inspection.SessionList
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil || status != http.StatusOK || len(list.Sessions) != 1 || list.Sessions[0].User != "ann" ||
		!reflect.DeepEqual(list.Sessions[0].Caveats, &limits) {
		t.Errorf("sessions: %d %s, %v", status, body, err)
	}
	// Another credential of the user does not widen the session.
	wide, err := d.Config.Auth.Authority().Mint("ann", time.Hour, time.Now())
	must(t, err)
	raw := c.With(wide.Username, string(wide.Password), stun.MethodCreatePermission, ask.Peer(d.b))
	if answer, err := c.Once(raw, timeout); err != nil || ask.Code(answer) != 441 {
		t.Errorf("another credential: %d, %v, want 441", ask.Code(answer), err)
	}
}

// A credential of another Gateway or time, or with malformed or unknown caveats, gets no allocation.
func TestInvalidCaveatsBeginNoAllocation(t *testing.T) {
	t.Parallel()
	d := startScoped(t)
	for name, r := range map[string]struct {
		caveats credential.Caveats
		want    stun.ErrorCode
	}{
		"another gateway": {credential.Caveats{Gateway: "test/other"}, 401},
		"tomorrow":        {credential.Caveats{NotBefore: time.Now().Add(24 * time.Hour).Unix()}, 401},
		"now":             {credential.Caveats{NotBefore: time.Now().Unix()}, 0},
	} {
		if code := codeOf(t, d.client(t, r.caveats, "bob"), stun.MethodAllocate, ask.UDP()); code != r.want {
			t.Errorf("%s: %d, want %d", name, code, r.want)
		}
	}
	for field, want := range map[string]stun.ErrorCode{
		"~1~A0": 401, "~1~A1~A1": 401, "~1~Rtest_a:x": 401, "~1~X1": 403, "~9~A1": 403,
	} {
		username := fmt.Sprint(time.Now().Add(time.Hour).Unix(), ":bob:", field)
		c := d.named(t, username, sign(username))
		if code := codeOf(t, c, stun.MethodAllocate, ask.UDP()); code != want {
			t.Errorf("%s: %d, want %d", field, code, want)
		}
	}
}

// When the bytes of a credential are used up, its session ends, and a new allocation with it is refused.
func TestCredentialIsUsedUp(t *testing.T) {
	t.Parallel()
	d := startScoped(t)
	const total = 10_000
	c := d.client(t, credential.Caveats{Bytes: total}, "eve")
	for _, r := range []struct {
		method stun.Method
		attrs  []stun.Setter
	}{
		{stun.MethodAllocate, []stun.Setter{ask.UDP()}},
		{stun.MethodChannelBind, []stun.Setter{ask.Channel(0x4000), ask.Peer(d.a)}},
	} {
		if code := codeOf(t, c, r.method, r.attrs...); code != 0 {
			t.Fatalf("%s: %d", r.method, code)
		}
	}
	payload := make([]byte, 1000)
	for i := range total / 2 / len(payload) { // the peer echoes each datagram
		must(t, c.Send(ask.ChannelData(0x4000, payload)))
		if got, err := c.Receive(timeout); err != nil || len(got) != 4+len(payload) {
			t.Fatalf("datagram %d: %d bytes, %v", i, len(got), err)
		}
	}
	must(t, c.Send(ask.ChannelData(0x4000, []byte{1})))
	// The next answer shows that the datagram was handled, because datagrams of a client are handled in order.
	if code := codeOf(t, c, stun.MethodRefresh); code != 437 {
		t.Errorf("refresh: %d, want 437", code)
	}
	if code := codeOf(t, c, stun.MethodAllocate, ask.UDP()); code != 486 {
		t.Errorf("allocate: %d, want 486", code)
	}
	if code := codeOf(t, d.client(t, credential.Caveats{Bytes: total + 1}, "eve"), stun.MethodAllocate, ask.UDP()); code != 0 {
		t.Errorf("another credential: %d", code)
	}
}

// Media in a channel stops when the peer becomes an endpoint of another route of the listener.
func TestCredentialFollowsItsRoute(t *testing.T) {
	t.Parallel()
	d := startScoped(t)
	c := d.client(t, credential.Caveats{Routes: []string{"test/a"}}, "ann")
	for _, r := range []struct {
		method stun.Method
		attrs  []stun.Setter
	}{
		{stun.MethodAllocate, []stun.Setter{ask.UDP()}},
		{stun.MethodChannelBind, []stun.Setter{ask.Channel(0x4000), ask.Peer(d.a)}},
	} {
		if code := codeOf(t, c, r.method, r.attrs...); code != 0 {
			t.Fatalf("%s: %d", r.method, code)
		}
	}
	passes := func() bool {
		must(t, c.Send(ask.ChannelData(0x4000, []byte("media"))))
		got, err := c.Receive(200 * time.Millisecond)
		var timeout net.Error
		if err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
			t.Fatal(err)
		}
		return err == nil && strings.HasSuffix(string(got), "media")
	}
	swap := func() {
		next := d.Config.Clone()
		next.Clusters[0].Endpoints, next.Clusters[1].Endpoints = next.Clusters[1].Endpoints, next.Clusters[0].Endpoints
		d.Replace(t, next)
	}
	if !passes() {
		t.Fatal("no media before the change")
	}
	for _, want := range []bool{false, true} {
		swap()
		for deadline := time.Now().Add(timeout); passes() != want; {
			if time.Now().After(deadline) {
				t.Fatalf("media after the change: %v", !want)
			}
		}
	}
}
