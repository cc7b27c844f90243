package credential_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// all has every caveat.
var all = credential.Caveats{
	Routes: []string{"media/janus", "media/sfu.eu-1"}, Gateway: "stunner/udp-gateway", Allocations: 2,
	BytesPerSecond: 250_000, Bytes: 1_000_000_000, NotBefore: 1_893_452_400,
}

// The text form and the JSON form are contracts with services that mint credentials themselves.
func TestContractCaveats(t *testing.T) {
	const text = "~1~Rmedia_janus~Rmedia_sfu.eu-1~Gstunner_udp-gateway~A2~S250000~B1000000000~N1893452400"
	if got := all.String(); got != text {
		t.Errorf("text %s", got)
	}
	if got, err := credential.ParseCaveats(text); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("parsed %+v, %v", got, err)
	}
	const document = `{"routes":["media/janus","media/sfu.eu-1"],"gateway":"stunner/udp-gateway","allocations":2,` +
		`"bytesPerSecond":250000,"bytes":1000000000,"notBefore":1893452400}`
	if got, err := json.Marshal(all); err != nil || string(got) != document {
		t.Errorf("JSON %s, %v", got, err)
	}
	a := credential.Authority{Realm: realm, SharedSecret: "s3cret"}
	c, err := a.MintWith(credential.Caveats{Routes: []string{"media/janus"}}, "alice", time.Hour,
		time.Unix(1893452400, 0))
	if err != nil || c.Username != "1893456000:alice:~1~Rmedia_janus" ||
		string(c.Password) != "0xgIsiI2ZwbpBBNwk5BayAjRNFQ=" {
		t.Errorf("minted %q with %q, %v", c.Username, string(c.Password), err)
	}
}

// Programs and formats that carry user names do not change the text.
func TestCaveatsNeedNoEscapes(t *testing.T) {
	text := all.String()
	if got := url.QueryEscape(text); got != text {
		t.Errorf("in a query: %s", got)
	}
	if got := url.PathEscape(text); got != text {
		t.Errorf("in a path: %s", got)
	}
	if got, err := json.Marshal(text); err != nil || string(got) != `"`+text+`"` {
		t.Errorf("in JSON: %s, %v", got, err)
	}
}

func TestParseCaveats(t *testing.T) {
	malformed, unknown := credential.ErrCaveatMalformed, credential.ErrCaveatUnknown
	long := strings.Repeat("a", 64)
	for text, want := range map[string]error{
		"~1~Ra_b": nil, "~1~Ra_b~Ra_c~Rb_b": nil, "~1~A1~Ra_b~S9~Rc_d": nil, "~1~R0_1": nil, "~1~Ra-b_c.d-e.f": nil,
		"~1~A9007199254740991": nil, "~1~N253402300799": nil,
		"~1~R" + long[:63] + "_" + strings.Repeat("b", 253): nil,

		"": malformed, "~": malformed, "~1": malformed, "~1~": malformed, "1~A1": malformed, "~1~A1~": malformed,
		"~1~~A1": malformed, "~1A1": malformed, "~~A1": malformed, "~x~A1": malformed, "~-1~A1": malformed,
		"~1~A": malformed, "~1~A0": malformed, "~1~A-1": malformed, "~1~A+1": malformed, "~1~A01": malformed,
		"~1~A1.0": malformed, "~1~A1e3": malformed, "~1~A 1": malformed, "~1~A1 ": malformed, "~1~A0x1": malformed,
		"~1~A1_000": malformed, "~1~A\u0661": malformed, "~1~A9007199254740992": malformed,
		"~1~B18446744073709551616": malformed, "~1~B18446744073709551617": malformed,
		"~1~N253402300800": malformed, "~1~A1~A1": malformed, "~1~A1~A2": malformed, "~1~N1~N1": malformed,
		"~1~R": malformed, "~1~R_": malformed, "~1~Ra_": malformed, "~1~R_b": malformed, "~1~Rab": malformed,
		"~1~Ra/b": malformed, "~1~Ra_b/c": malformed, "~1~Ra_b_c": malformed, "~1~RA_b": malformed,
		"~1~Ra_B": malformed, "~1~Ra_*": malformed, "~1~Ra.b_c": malformed, "~1~R-a_b": malformed,
		"~1~Ra-_b": malformed, "~1~Ra_b..c": malformed, "~1~Ra_.b": malformed, "~1~Ra_b.": malformed,
		"~1~Ra_b\x00": malformed, "~1~Ra_b~Ra_b": malformed, "~1~Ga_b~Ga_b": malformed, "~1~Ga_b~Ga_c": malformed,
		"~1~R" + long + "_b": malformed, "~1~Ra_" + strings.Repeat("b", 254): malformed,
		"~1~a1": malformed, "~1~11": malformed, "~1~*1": malformed, "~1~\xff1": malformed,

		"~1~X1": unknown, "~1~Xanything": unknown, "~1~A1~X1": unknown, "~1~X1~A1": unknown, "~2~A1": unknown,
		"~2~": unknown, "~01~A1": unknown, "~11~A1": unknown, "~99999999999999999999~Ra_b": unknown,
		"~1~X1~A0": malformed, "~1~A0~X1": malformed, "~1~X": malformed,
	} {
		got, err := credential.ParseCaveats(text)
		if !errors.Is(err, want) || err != nil && !got.IsZero() {
			t.Errorf("%q: %+v, %v, want %v", text, got, err, want)
		}
		if err == nil && got.Validate() != nil {
			t.Errorf("%q: parsed to what is invalid: %v", text, got.Validate())
		}
	}
}

// Caveats are the last field, after a user id. A name without a marker has the meaning that it had before caveats.
func TestVerifyCaveats(t *testing.T) {
	a := credential.Authority{
		Realm: realm, SharedSecret: "secret", Username: "1800000001:static:~1~A1", Password: "pass",
	}
	route := credential.Caveats{Routes: []string{"a/b"}}
	for _, c := range []struct {
		username, userID string
		caveats          credential.Caveats
		err              error
	}{
		{"1800000001:alice:~1~Ra_b", "alice", route, nil},
		{"alice:1800000001:~1~Ra_b", "alice", route, nil},
		{"1800000001::~1~Ra_b", "", route, nil},
		{"1800000001:a:b:~1~Ra_b", "a:b", route, nil},
		{"a:1800000001:b:~1~Ra_b", "a:b", route, nil},
		{"1800000001:~alice:~1~Ra_b", "~alice", route, nil},
		{"1800000001:alice:~1~N1800000000", "alice", credential.Caveats{NotBefore: 1800000000}, nil},

		{"1800000001:~alice", "~alice", credential.Caveats{}, nil},
		{"1800000001:~1", "~1", credential.Caveats{}, nil},
		{"1800000001:a:~", "a:~", credential.Caveats{}, nil},
		{"1800000001:a:~~", "a:~~", credential.Caveats{}, nil},
		{"1800000001:a~1~Ra_b", "a~1~Ra_b", credential.Caveats{}, nil},
		{"1800000001:static", "static", credential.Caveats{}, nil},
		{"1800000001:static:~1~A1", "1800000001:static:~1~A1", credential.Caveats{}, nil},

		{"1800000001:alice:~1~A0", "alice", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"1800000001:alice:~1~", "alice", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"1800000001:alice:~2~A1", "alice", credential.Caveats{}, credential.ErrCaveatUnknown},
		{"1800000001:alice:~1~X1", "alice", credential.Caveats{}, credential.ErrCaveatUnknown},
		// A marker in the wrong place.
		{"1800000001:~1~Ra_b", "~1~Ra_b", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"~1~Ra_b:1800000001", "~1~Ra_b", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"~1~Ra_b:1800000001:alice", "~1~Ra_b:alice", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"1800000001:~1~Ra_b:alice", "~1~Ra_b:alice", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"1800000001:alice:~1~Ra_b:", "alice:~1~Ra_b:", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"1800000001:alice:~1~Ra_b:~1~A1", "alice:~1~Ra_b", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"alice:~1~Ra_b:1800000001", "alice:~1~Ra_b", credential.Caveats{}, credential.ErrCaveatMalformed},
		{"12345:alice:~1~Ra_b", "", credential.Caveats{}, credential.ErrUnknownUser},

		{"1800000000:alice:~1~Ra_b", "alice", route, credential.ErrExpired},
		{"1800000009:alice:~1~N1800000001", "alice", credential.Caveats{NotBefore: 1800000001}, credential.ErrNotYet},
	} {
		v, err := a.Verify(c.username, now, 0)
		if !errors.Is(err, c.err) || v.UserID != c.userID || !reflect.DeepEqual(v.Caveats, c.caveats) {
			t.Errorf("%q: %q %+v, %v", c.username, v.UserID, v.Caveats, err)
		}
		if known := !errors.Is(err, credential.ErrUnknownUser); known != (len(v.Key) == 16) {
			t.Errorf("%q: key of %d bytes", c.username, len(v.Key))
		}
	}
}

// The leeway moves both ends of the time in which a credential is valid.
func TestVerifyLeeway(t *testing.T) {
	a := credential.Authority{Realm: realm, SharedSecret: "secret"}
	const username = "1800000100:alice:~1~N1800000000"
	for at, want := range map[int64]error{
		1799999994: credential.ErrNotYet, 1799999995: nil, 1800000105: nil, 1800000106: credential.ErrExpired,
	} {
		if _, err := a.Verify(username, time.Unix(at, 0), 5*time.Second); !errors.Is(err, want) {
			t.Errorf("at %d: %v, want %v", at, err, want)
		}
	}
}

func TestMintWith(t *testing.T) {
	ephemeral := credential.Authority{Realm: realm, SharedSecret: "secret"}
	for _, user := range []string{"", "alice", "~alice", "~1", "ünïcode"} {
		c, err := ephemeral.MintWith(all, user, 300*24*time.Hour, time.Unix(all.NotBefore, 0))
		if err != nil {
			t.Errorf("mint for %q: %v", user, err)
			continue
		}
		v, err := ephemeral.Verify(c.Username, time.Unix(all.NotBefore, 0), 0)
		if err != nil || v.UserID != user || !reflect.DeepEqual(v.Caveats, all) {
			t.Errorf("%q: %+v, %v", c.Username, v, err)
		}
	}
	long := credential.Caveats{}
	for i := range 100 {
		long.Routes = append(long.Routes, fmt.Sprintf("media/route-%d", i))
	}
	many := credential.Caveats{Routes: make([]string, 129)}
	for name, c := range map[string]struct {
		authority credential.Authority
		caveats   credential.Caveats
		user      string
		want      string
	}{
		"many routes": {ephemeral, many, "alice", "routes: must have at most 128 entries"},
		"static":      {credential.Authority{Username: "u", Password: "p"}, all, "alice", "shared secret"},
		"nobody":      {credential.Authority{}, all, "alice", "no TURN credentials"},
		"too long":    {ephemeral, long, "alice", "at most 508 bytes"},
		"negative":    {ephemeral, credential.Caveats{Bytes: -1}, "alice", "bytes: must be between 1 and"},
		"overflow":    {ephemeral, credential.Caveats{Allocations: 1 << 53}, "alice", "allocations: must be"},
		"no time":     {ephemeral, credential.Caveats{NotBefore: 1 << 40}, "alice", "notBefore: must be"},
		"no route":    {ephemeral, credential.Caveats{Routes: []string{"a/b", "b"}}, "alice", "routes[1]: must be"},
		"two":         {ephemeral, credential.Caveats{Routes: []string{"a/b", "a/b"}}, "alice", "routes[1]: must not"},
		"injection":   {ephemeral, credential.Caveats{Gateway: "a/b~A9"}, "alice", "gateway: must be"},
		"user marker": {ephemeral, credential.Caveats{}, "~1~A9", "user id must not begin like caveats"},
		"version 2":   {ephemeral, credential.Caveats{}, "~2~", "user id must not begin like caveats"},
	} {
		got, err := c.authority.MintWith(c.caveats, c.user, time.Hour, now)
		if err == nil || got != (credential.Credential{}) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestNarrow(t *testing.T) {
	for _, c := range []struct{ one, other, want string }{
		{"~1~Ra_b", "~1~Ra_b", "~1~Ra_b"},
		{"~1~Ra_b~Ra_c", "~1~Ra_c~Ra_d", "~1~Ra_c"},
		{"~1~Ra_b", "~1~A2", "~1~Ra_b~A2"},
		{"~1~A2~S7~B9~N5", "~1~A3~S6~B9~N6", "~1~A2~S6~B9~N6"},
		{"~1~Ga_b", "~1~Ga_b~A1", "~1~Ga_b~A1"},
		{"~1~Ra_b", "~1~Ra_c", ""},
		{"~1~Ga_b", "~1~Ga_c", ""},
	} {
		one, _ := credential.ParseCaveats(c.one)
		other, _ := credential.ParseCaveats(c.other)
		for _, pair := range [][2]credential.Caveats{{one, other}, {other, one}} {
			got, err := pair[0].Narrow(pair[1])
			if got.String() != c.want || (err != nil) != (c.want == "") {
				t.Errorf("%s and %s: %s, %v", pair[0], pair[1], got, err)
			}
		}
		if one.String() != c.one {
			t.Errorf("Narrow changes its arguments: %s", one)
		}
	}
}

// form is the grammar of the caveats of version 1, as in the documentation.
var (
	name = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?_[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`
	form = regexp.MustCompile(`^~1(~([RG]` + name + `|[ASBN][1-9][0-9]*))+$`)
)

// modelOf reads a user name by the grammar. wide is true if the name has no caveats and must not be limited.
func modelOf(username string) (c credential.Caveats, ok, wide bool) {
	fields := strings.Split(username, ":")
	isMarked := func(f string) bool { return regexp.MustCompile(`^~[0-9]+~`).MatchString(f) }
	if !slices.ContainsFunc(fields, isMarked) {
		return c, true, true
	}
	last := fields[len(fields)-1]
	if slices.ContainsFunc(fields[:len(fields)-1], isMarked) || len(fields) < 3 || !form.MatchString(last) {
		return c, false, false
	}
	for _, caveat := range strings.Split(last, "~")[2:] {
		value := caveat[1:]
		number, _ := new(big.Int).SetString(value, 10)
		path := strings.Replace(value, "_", "/", 1)
		_, object, _ := strings.Cut(path, "/")
		var at *int64
		most := int64(1<<53 - 1)
		switch caveat[0] {
		case 'R':
			if slices.Contains(c.Routes, path) || len(object) > 253 {
				return c, false, false
			}
			c.Routes = append(c.Routes, path)
			continue
		case 'G':
			if c.Gateway != "" || len(object) > 253 {
				return c, false, false
			}
			c.Gateway = path
			continue
		case 'A':
			at = &c.Allocations
		case 'S':
			at = &c.BytesPerSecond
		case 'B':
			at = &c.Bytes
		case 'N':
			at, most = &c.NotBefore, 253_402_300_799
		}
		if *at != 0 || number.Cmp(big.NewInt(most)) > 0 {
			return c, false, false
		}
		*at = number.Int64()
	}
	return c, true, false
}

// checkAgainstModel checks that a name has the caveats of the model, or is refused.
func checkAgainstModel(t *testing.T, username string) {
	t.Helper()
	a := credential.Authority{Realm: realm, SharedSecret: "secret"}
	name, err := credential.ParseUsername(username)
	if errors.Is(err, credential.ErrUnknownUser) {
		if _, _, is := timestamp(username); is {
			t.Fatalf("%q: %v", username, err)
		}
		return
	}
	want, ok, wide := modelOf(username)
	switch {
	case ok != (err == nil):
		t.Fatalf("%q: %v, want valid: %v", username, err, ok)
	case err == nil && !reflect.DeepEqual(name.Caveats, want), err != nil && !name.Caveats.IsZero():
		t.Fatalf("%q: %+v, want %+v", username, name.Caveats, want)
	case err == nil && name.Caveats.IsZero() != wide:
		t.Fatalf("%q: widened to %+v", username, name.Caveats)
	}
	v, failed := a.Verify(username, name.Expires, 0)
	if err != nil && !errors.Is(failed, err) || v.UserID != name.UserID || !reflect.DeepEqual(v.Caveats, name.Caveats) {
		t.Fatalf("%q: verified as %+v, %v", username, v, failed)
	}
	if err != nil {
		return
	}
	again, err := credential.ParseCaveats(name.Caveats.String())
	if !wide && (err != nil || !reflect.DeepEqual(again, want)) {
		t.Fatalf("%q: written as %s and read as %+v, %v", username, name.Caveats, again, err)
	}
	narrowed, err := name.Caveats.Narrow(all)
	if err == nil && (narrowed.Allocations > all.Allocations || narrowed.Allocations == 0 ||
		len(narrowed.Routes) == 0 || slices.ContainsFunc(narrowed.Routes, func(r string) bool { return !all.Names(r) })) {
		t.Fatalf("%q: narrowed to %+v", username, narrowed)
	}
}

var nameSeeds = []string{
	"1893456000:alice:~1~Ra_b", "alice:1893456000:~1~Ra_b", "1893456000::~1~Ra_b~Ra_c~Gd_e~A1~S2~B3~N4",
	"1893456000:~1~Ra_b", "~1~Ra_b:1893456000:alice", "1893456000:alice:~1~Ra_b:~1~Rc_d", "1893456000:alice:~2~Ra_b",
	"1893456000:alice:~1~Ra_b~Ra_b", "1893456000:alice:~1~A0", "1893456000:alice:~1~A18446744073709551617",
	"1893456000:alice:~1~X1~Ra_b", "1893456000:alice:~~Ra_b", "1893456000:alice:~1~Ra_b:", "1893456000:a:~1~R-_b",
}

// No name is parsed with fewer caveats than by the grammar, and no name causes a panic.
func FuzzCaveats(f *testing.F) {
	for _, seed := range nameSeeds {
		f.Add(seed)
	}
	f.Fuzz(checkAgainstModel)
}

// 10,000 randomly mutated names are parsed according to the grammar.
func TestMutatedNamesDoNotWiden(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		checkAgainstModel(t, mutate(r, nameSeeds[r.IntN(len(nameSeeds))]))
	}
}

// mutate changes up to four places of a name.
func mutate(r *rand.Rand, name string) string {
	parts := []string{
		"~", ":", "_", "~1~", ":~1~", "~R", "~A9", "~S", "0", "9", "a", "A", "/", "\x00", "é", "1893456000", "-", ".",
	}
	for range r.IntN(5) {
		at := r.IntN(len(name) + 1)
		cut := min(len(name), at+r.IntN(4))
		name = name[:at] + parts[r.IntN(len(parts))] + name[cut:]
	}
	return name
}

// FuzzMint: a minted credential is read back with the same user, expiry and caveats. Otherwise nothing is minted.
func FuzzMint(f *testing.F) {
	f.Add("alice", "media/janus", "media/bonn", int64(2), int64(1893456000), int64(1893452400))
	f.Add("9999999999", "", "", int64(0), int64(0), int64(-3600))
	f.Add("~1~A9", "a/b~A9", "a/b:~1~A9", int64(1)<<53, int64(-1), int64(253_402_300_799))
	f.Add("", "a_b/c", "", int64(0), int64(0), int64(1_000_000_000))
	f.Fuzz(func(t *testing.T, user, route, gateway string, allocations, notBefore, at int64) {
		a, now := credential.Authority{Realm: realm, SharedSecret: "secret"}, time.Unix(at, 0)
		caveats := credential.Caveats{Gateway: gateway, Allocations: allocations, NotBefore: notBefore}
		if route != "" {
			caveats.Routes = []string{route}
		}
		minted, err := a.MintWith(caveats, user, time.Hour, now)
		if err != nil {
			return
		}
		checkAgainstModel(t, minted.Username)
		name, err := credential.ParseUsername(minted.Username)
		if err != nil || name.UserID != user || !name.Expires.Equal(now.Add(time.Hour)) || !name.Expires.Equal(minted.Expires) ||
			!reflect.DeepEqual(name.Caveats, caveats) {
			t.Errorf("minted %q for %q, %+v at %s, read as %+v, %v", minted.Username, user, caveats, now, name, err)
		}
	})
}

// A name without caveats costs no memory.
func TestParseUsernameAllocates(t *testing.T) {
	for username, want := range map[string]float64{
		"1893456000:alice": 0, "alice:1893456000": 0, "1893456000": 0, "nobody": 0, "1893456000:a:b:c": 0,
		"a:1893456000:b": 1, "1893456000:alice:~1~A1": 1,
	} {
		if got := testing.AllocsPerRun(100, func() { _, _ = credential.ParseUsername(username) }); got != want {
			t.Errorf("%q: %v allocations, want %v", username, got, want)
		}
	}
}

func BenchmarkParseUsername(b *testing.B) {
	for _, username := range []string{"1893456000:alice", "1893456000:alice:~1~Rmedia_janus~A2"} {
		b.Run(username, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = credential.ParseUsername(username)
			}
		})
	}
}
