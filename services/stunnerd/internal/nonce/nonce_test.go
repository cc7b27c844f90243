package nonce

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

func newSource(t *testing.T) *Source {
	t.Helper()
	n, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ephemeral returns the config of a gateway with a shared secret.
func ephemeral(name string, secret credential.Secret) config.Config {
	c := config.Zero(name)
	c.Auth = config.Auth{
		Type: config.AuthEphemeral, Realm: "test.example",
		Credentials: map[string]credential.Secret{config.KeySecret: secret},
	}
	return c
}

// T-09: a nonce is valid only for its client, for an hour, and unchanged.
func TestNonceIsBoundToClientAndHour(t *testing.T) {
	n, born := newSource(t), time.Unix(1_800_000_000, 0)
	client, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	nonce := n.Make(client, born)
	flipped := func(at int) []byte {
		b := bytes.Clone(nonce)
		b[at] ^= 1
		return b
	}
	for _, c := range []struct {
		what  string
		nonce []byte
		from  netip.Addr
		at    time.Duration
		want  bool
	}{
		{"at once", nonce, client, 0, true},
		{"after 59:59", nonce, client, MaxLifetime - time.Second, true},
		{"after 60:01", nonce, client, MaxLifetime + time.Second, false},
		{"from a clock ahead", nonce, client, -leeway, true},
		{"from the future", nonce, client, -leeway - time.Second, false},
		{"another client", nonce, other, 0, false},
		{"time flipped", flipped(1), client, 0, false},
		{"MAC flipped", flipped(15), client, 0, false},
		{"cut", nonce[:15], client, 0, false},
		{"none", nil, client, 0, false},
		{"of another process", newSource(t).Make(client, born), client, 0, false},
	} {
		if got := n.Valid(c.nonce, c.from, born.Add(c.at)); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// a nonce is valid exactly for the configured lifetime, also across a change of the hour, and after a reload of
// the config.
func TestNonceLivesAsLongAsConfigured(t *testing.T) {
	client := netip.MustParseAddr("192.0.2.1")
	for _, lifetime := range []time.Duration{MaxLifetime, MinLifetime} {
		n := newSource(t)
		n.Lifetime = lifetime
		for _, second := range []int64{0, 1, 1800, 3599} { // of the hour that the key belongs to
			born := time.Unix(1_800_000_000+second, 0)
			for _, auth := range []credential.Secret{"", "first", "first", "second"} {
				nonce := n.Make(client, born)
				n.Share(ephemeral("media/edge", auth))
				if !n.Valid(nonce, client, born.Add(lifetime-time.Second)) {
					t.Errorf("%s: refused a second before the end", lifetime)
				}
				if n.Valid(nonce, client, born.Add(lifetime+time.Second)) {
					t.Errorf("%s: good a second after the end", lifetime)
				}
			}
		}
	}
}

// A-05, T-09: the pods of a Gateway accept the nonces of each other. After a change of the secret, nonces under the
// previous secret are accepted.
func TestPodsOfAGatewayShareNonces(t *testing.T) {
	client, now := netip.MustParseAddr("192.0.2.1"), time.Unix(1_800_000_000, 0)
	one, other, stranger := newSource(t), newSource(t), newSource(t)
	before := one.Make(client, now)
	one.Share(ephemeral("media/edge", "first"))
	other.Share(ephemeral("media/edge", "first"))
	stranger.Share(ephemeral("media/other", "first"))
	shared := one.Make(client, now)
	if !one.Valid(before, client, now) {
		t.Error("a nonce from before the first config is lost")
	}
	if !other.Valid(shared, client, now) || stranger.Valid(shared, client, now) {
		t.Error("a nonce is good at another gateway, or not at another pod")
	}
	one.Share(ephemeral("media/edge", "first")) // any other change of the config
	one.Share(ephemeral("media/edge", "second"))
	if !one.Valid(shared, client, now) {
		t.Error("a nonce is lost with the secret that it was made under")
	}
	one.Share(ephemeral("media/edge", "third"))
	if one.Valid(shared, client, now) {
		t.Error("a nonce outlives two changes of the secret")
	}
}

// T-09: nonces are not derived from a static credential, because every client of the gateway has it.
func TestStaticCredentialMakesNoNonces(t *testing.T) {
	client, now := netip.MustParseAddr("192.0.2.1"), time.Unix(1_800_000_000, 0)
	c := config.Zero("media/edge")
	c.Auth = config.Auth{Type: config.AuthStatic, Realm: "test.example", Credentials: map[string]credential.Secret{
		config.KeyUsername: "ann", config.KeyPassword: "first",
	}}
	one, other := newSource(t), newSource(t)
	one.Share(c)
	other.Share(c)
	if other.Valid(one.Make(client, now), client, now) {
		t.Error("another process makes the same nonces")
	}
}

// A-05, T-09: pods with a key of the Gateway accept the nonces of each other, independent of their configs. A nonce
// that was made before the pods had keys stays valid, and so does a nonce of yesterday's key. The loss of the list of
// pods makes no nonce invalid.
func TestPodsWithAKeyShareNonces(t *testing.T) {
	client, now := netip.MustParseAddr("192.0.2.1"), time.Unix(1_800_000_000, 0)
	yesterday, today, tomorrow, foreign := [32]byte{1}, [32]byte{2}, [32]byte{3}, [32]byte{4}
	one, other, stranger := newSource(t), newSource(t), newSource(t)
	static := config.Zero("media/edge")
	static.Auth = config.Auth{Type: config.AuthStatic, Realm: "test.example", Credentials: map[string]credential.Secret{
		config.KeyUsername: "ann", config.KeyPassword: "first",
	}}
	one.Share(static)
	before := one.Make(client, now)
	one.ShareKeys([][32]byte{today, yesterday})
	other.Share(ephemeral("media/edge", "of a later config"))
	other.ShareKeys([][32]byte{today, yesterday})
	stranger.ShareKeys([][32]byte{foreign})
	nonce := one.Make(client, now)
	check := func(what string, at *Source, nonce []byte, want bool) {
		t.Helper()
		if got := at.Valid(nonce, client, now); got != want {
			t.Errorf("%s: valid %t, want %t", what, got, want)
		}
	}
	check("at another pod", other, nonce, true)
	if !one.Own(nonce) || !one.Own(before) || one.Own([]byte("short")) {
		t.Error("a pod does not know its own nonces")
	}
	one.mark, other.mark = 1, 2 // by chance, they are equal in one of 256 runs
	if other.Own(one.Make(client, now)) || one.Own(other.Make(client, now)) {
		t.Error("a pod takes the nonce of another one for its own")
	}
	check("of another pod", one, other.Make(client, now), true)
	check("at another gateway", stranger, nonce, false)
	check("from before the keys", one, before, true)
	check("from before the keys, at another pod", other, before, false)
	other.Share(ephemeral("media/edge", "another"))
	check("after a change of the config", other, nonce, true)
	other.ShareKeys(nil)
	check("without a list of pods", other, nonce, true)
	other.ShareKeys([][32]byte{tomorrow, today})
	check("of yesterday's key", other, nonce, true)
	check("of a pod whose list is a day ahead", one, other.Make(client, now), false)
	one.ShareKeys([][32]byte{tomorrow, today})
	check("of a pod with the same list", one, other.Make(client, now), true)
	one.ShareKeys([][32]byte{foreign, tomorrow, today})
	check("of the third key", one, nonce, false)
}

// after a jump of the wall clock, a client gets at most one 438. The new nonce is valid and stays valid.
func TestClockJumpsCostOneNonce(t *testing.T) {
	n, client, now := newSource(t), netip.MustParseAddr("192.0.2.1"), time.Unix(1_800_000_000, 0)
	held := n.Make(client, now)
	for _, jump := range []time.Duration{
		time.Hour, -time.Hour, 24 * time.Hour, -24 * time.Hour, time.Second, -time.Second, 0, 1e5 * time.Hour,
		-1e5 * time.Hour,
	} {
		now = now.Add(jump)
		refused := 0
		for _, later := range []time.Duration{0, time.Second, 29 * time.Minute, 59 * time.Minute} {
			if at := now.Add(later); !n.Valid(held, client, at) {
				refused++
				held = n.Make(client, at)
			}
		}
		if refused > 1 {
			t.Errorf("after a jump of %s: %d times within the hour", jump, refused)
		}
	}
}

// A nonce of a previous process is valid if the root was kept. A root of another length is not used.
func TestNonceOfFormerProcess(t *testing.T) {
	former, now, client := newSource(t), time.Unix(1_800_000_000, 0), netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		root []byte
		want bool
	}{{former.Root(), true}, {former.Root()[1:], false}} {
		n, err := New(c.root)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.Valid(former.Make(client, now), client, now); got != c.want {
			t.Errorf("with a root of %d bytes: valid %t, want %t", len(c.root), got, c.want)
		}
	}
}
