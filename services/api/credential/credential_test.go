package credential_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

const realm = "stunner.l7mp.io"

// now is half a second after a full second, to detect rounding.
var now = time.Unix(1_800_000_000, 500_000_000)

// J-10: user name, password and key of an ephemeral credential equal a fixed example.
func TestContractEphemeralVector(t *testing.T) {
	a := credential.Authority{Realm: realm, SharedSecret: "s3cret"}
	expires := time.Unix(1893456000, 0)
	c, err := a.Mint("alice", time.Hour, expires.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if c.Username != "1893456000:alice" || string(c.Password) != "6zlfmlvWfWDvDds1Zc+zxTmSW8w=" ||
		!c.Expires.Equal(expires) {
		t.Errorf("minted %q with %q until %s", c.Username, string(c.Password), c.Expires)
	}
	v, err := a.Verify("1893456000:alice", expires, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(v.Key); got != "7d95a9a75ecae5ed40d85c5e36129025" {
		t.Errorf("key %s", got)
	}
	if v.UserID != "alice" || !v.Expires.Equal(expires) {
		t.Errorf("verified %q until %s", v.UserID, v.Expires)
	}
}

// The example of RFC 8489 §9.2.2.
func TestContractLongTermKey(t *testing.T) {
	if got := hex.EncodeToString(credential.Key("user", "realm", "pass")); got != "8493fbc53ba582fb4c044c456bdc40eb" {
		t.Errorf("key %s", got)
	}
}

// T-13: a credential is valid until its expiry, however far ahead it is.
func TestVerify(t *testing.T) {
	static := credential.Authority{Realm: realm, Username: "user", Password: "pass"}
	ephemeral := credential.Authority{Realm: realm, SharedSecret: "secret"}
	both := credential.Authority{Realm: realm, Username: "user", Password: "pass", SharedSecret: "secret"}
	for _, c := range []struct {
		name      string
		authority credential.Authority
		username  string
		userID    string
		err       error
	}{
		{"static user", static, "user", "user", nil},
		{"another static user", static, "User", "", credential.ErrUnknownUser},
		{"ephemeral user of a static authority", static, "1800000001:alice", "", credential.ErrUnknownUser},
		{"nobody", static, "", "", credential.ErrUnknownUser},
		{"ephemeral user", ephemeral, "1800000001:alice", "alice", nil},
		{"timestamp behind", ephemeral, "alice:1800000001", "alice", nil},
		{"timestamp alone", ephemeral, "1800000001", "", nil},
		{"no user id", ephemeral, "1800000001:", "", nil},
		{"colons in the user id", ephemeral, "1800000001:a:b", "a:b", nil},
		{"number as user id in front", ephemeral, "12345:1800000001", "12345", nil},
		{"expired", ephemeral, "1800000000:alice", "alice", credential.ErrExpired},
		{"long expired", ephemeral, "1000000000:alice", "alice", credential.ErrExpired},
		{"number that is no time", ephemeral, "12345:alice", "", credential.ErrUnknownUser},
		{"zero", ephemeral, "0:alice", "", credential.ErrUnknownUser},
		{"negative", ephemeral, "-1800000001:alice", "", credential.ErrUnknownUser},
		{"signed", ephemeral, "+1800000001:alice", "", credential.ErrUnknownUser},
		{"overflow", ephemeral, "99999999999999999999:alice", "", credential.ErrUnknownUser},
		{"beyond the calendar", ephemeral, "253402300800:alice", "", credential.ErrUnknownUser},
		{"a year ahead", ephemeral, fmt.Sprint(now.Add(credential.MaxTTL).Unix(), ":alice"), "alice", nil},
		{"far ahead", ephemeral, fmt.Sprint(
			now.Add(credential.MaxTTL+time.Hour).Unix(), ":alice",
		), "alice", nil},
		{"7,000 years ahead", ephemeral, "222902510400:alice", "alice", nil},
		{"hexadecimal", ephemeral, "0x6b49d201:alice", "", credential.ErrUnknownUser},
		{"static user of an ephemeral authority", ephemeral, "user", "", credential.ErrUnknownUser},
		{"static user of both", both, "user", "user", nil},
		{"ephemeral user of both", both, "1800000001:alice", "alice", nil},
		{"anybody at nobody's", credential.Authority{}, "1800000001:alice", "", credential.ErrUnknownUser},
		{"empty user at nobody's", credential.Authority{}, "", "", credential.ErrUnknownUser},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := c.authority.Verify(c.username, now, 0)
			if !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if v.UserID != c.userID {
				t.Errorf("user id %q, want %q", v.UserID, c.userID)
			}
			if known := !errors.Is(err, credential.ErrUnknownUser); known != (len(v.Key) == 16) {
				t.Errorf("key of %d bytes", len(v.Key))
			}
		})
	}
}

// T-07: only a name that is signed with a long secret is not guessable.
func TestGuessable(t *testing.T) {
	const short, long = "fifteen-bytes-x", "sixteen-bytes-xx"
	for _, c := range []struct {
		authority credential.Authority
		username  string
		want      bool
	}{
		{credential.Authority{Username: "user", Password: long}, "user", true},
		{credential.Authority{Username: "user", Password: long}, "1800000001:alice", true},
		{credential.Authority{SharedSecret: long}, "1800000001:alice", false},
		{credential.Authority{SharedSecret: long}, "alice", true},
		{credential.Authority{SharedSecret: short}, "1800000001:alice", true},
		{credential.Authority{
			Username: "1800000001:alice", Password: long, SharedSecret: long,
		}, "1800000001:alice", true},
		{credential.Authority{Username: "user", Password: long, SharedSecret: long}, "1800000001:alice", false},
	} {
		if got := c.authority.Guessable(c.username); got != c.want {
			t.Errorf("%q of %+v: %v", c.username, c.authority, got)
		}
	}
}

func TestMint(t *testing.T) {
	ephemeral := credential.Authority{Realm: realm, SharedSecret: "secret"}
	for _, user := range []string{"", "alice", "12345", "1893456000", "ünïcode", "a b/c?d", strings.Repeat("x", 497)} {
		c, err := ephemeral.Mint(user, time.Hour, now)
		if err != nil {
			t.Errorf("mint for %q: %v", user, err)
			continue
		}
		v, err := ephemeral.Verify(c.Username, now, 0)
		if err != nil || v.UserID != user || !bytes.Equal(v.Key, credential.Key(c.Username, realm, c.Password)) {
			t.Errorf("verify %q: user id %q, %v", c.Username, v.UserID, err)
		}
		if rest := c.Expires.Sub(now); rest > time.Hour || rest <= time.Hour-time.Second ||
			!v.Expires.Equal(c.Expires) {
			t.Errorf("%q lives for %s", c.Username, rest)
		}
	}

	static := credential.Authority{Realm: realm, Username: "user", Password: "pass"}
	c, err := static.Mint("alice", time.Hour, now)
	if err != nil || c.Username != "user" || c.Password != "pass" || !c.Expires.IsZero() {
		t.Errorf("static: %+v, %v", c, err)
	}
}

func TestMintRefuses(t *testing.T) {
	ephemeral := credential.Authority{SharedSecret: "hunter2"}
	for name, c := range map[string]struct {
		authority credential.Authority
		user      string
		ttl       time.Duration
	}{
		"an authority that accepts nobody": {credential.Authority{}, "alice", time.Hour},
		"a colon":                          {ephemeral, "a:b", time.Hour},
		"a user id that fits no STUN":      {ephemeral, strings.Repeat("x", 498), time.Hour},
		"invalid UTF-8":                    {ephemeral, "a\xff", time.Hour},
		"no time":                          {ephemeral, "alice", 0},
		"negative time":                    {ephemeral, "alice", -time.Hour},
		"less than a second":               {ephemeral, "alice", time.Second - 1},
		"more than a year":                 {ephemeral, "alice", credential.MaxTTL + 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.authority.Mint(c.user, c.ttl, now)
			if err == nil || got != (credential.Credential{}) {
				t.Errorf("minted %+v", got)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

// With a clock that is not set, the expiry would be taken for a part of the user id, and a numeric user id for the
// expiry.
func TestMintNeedsTheTime(t *testing.T) {
	ephemeral := credential.Authority{SharedSecret: "hunter2"}
	for _, at := range []time.Time{{}, time.Unix(0, 0), time.Unix(1_000_000_000, 0).Add(-time.Hour - 1), time.Unix(253_402_300_800, 0)} {
		if got, err := ephemeral.Mint("9999999999", time.Hour, at); err == nil || !strings.Contains(err.Error(), "clock") {
			t.Errorf("at %s: %+v, %v", at, got, err)
		}
	}
	if _, err := ephemeral.Mint("9999999999", time.Hour, time.Unix(1_000_000_000, 0).Add(-time.Hour)); err != nil {
		t.Error(err)
	}
}

// K-04: a secret is redacted in every format and in logs.
func TestSecretsDoNotShow(t *testing.T) {
	const secret = credential.Secret("hunter2")
	holder := struct{ S credential.Secret }{secret}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "secret", secret)
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "secret", secret, "holder", holder)
	shown := []string{secret.String(), secret.GoString(), log.String()}
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q", "%x", "%X", "%d", "%10s", "%.3s"} {
		shown = append(
			shown, fmt.Sprintf(verb, secret), fmt.Sprintf(verb, holder), fmt.Sprintf(verb, &holder),
			fmt.Sprintf(verb, []credential.Secret{secret}),
		)
	}
	for _, text := range shown {
		if strings.Contains(text, "hunter2") ||
			strings.Contains(strings.ToLower(text), hex.EncodeToString([]byte("hunter2"))) {
			t.Errorf("shown: %s", text)
		}
	}
	if credential.Secret("").String() != "" {
		t.Error("an empty secret is not empty")
	}
	if data, err := json.Marshal(secret); err != nil || string(data) != `"hunter2"` {
		t.Errorf("configs must carry secrets: %s, %v", data, err)
	}
}

// F-06: a user name has exactly one timestamp, and Mint and Verify agree about it.
func FuzzParseUsername(f *testing.F) {
	for _, seed := range []string{
		"1893456000:alice", "alice:1893456000", "1893456000", "1893456000:", ":1893456000", "12345:1893456000",
		"1893456000:1893456001",
		"-1893456000:a", "+1893456000", "99999999999999999999:a", "253402300799:a", "253402300800:a", "999999999:a",
		"1000000000:a", "0:0:0", "", ":", "::",
		"01893456000:a", " 1893456000:a", "1893456000\x00:a", "1_893_456_000:a", "a:b:1893456000:c",
		"18446744075602007616:a", "-9223372036854775808:a",
		"0x70dbd880:a", "1893456000.0:a", "1e9:a", "\u0661\u0668\u0669\u0663\u0664\u0665\u0666\u0660\u0660\u0660:a",
		"1893456000:\xff", "1893456000:a:1893456000",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, username string) {
		name, err := credential.ParseUsername(username)
		if strings.Contains(username, "~") { // FuzzCaveats
			return
		}
		ok, user := err == nil, name.UserID
		wantExpires, wantUser, want := timestamp(username)
		if ok != want || user != wantUser || want && name.Expires.Unix() != wantExpires || !want && !name.Expires.IsZero() {
			t.Fatalf(
				"%q is of %q until %s, %v; want %q until %d, %v", username, user, name.Expires, ok, wantUser, wantExpires,
				want,
			)
		}
		a := credential.Authority{Realm: realm, SharedSecret: "secret"}
		v, err := a.Verify(username, name.Expires.Add(-credential.MaxTTL), 0)
		if ok != (err == nil) || v.UserID != user || !v.Expires.Equal(name.Expires) || !v.Caveats.IsZero() {
			t.Fatalf("verdicts differ: parsed %v, verified %v", ok, err)
		}
		if !ok {
			return
		}
		if _, err := a.Verify(username, name.Expires, 0); err != nil {
			t.Errorf("refused in its last second: %v", err)
		}
		if _, err := a.Verify(username, time.Unix(0, 0), 0); err != nil {
			t.Errorf("long before: %v", err)
		}
		if _, err := a.Verify(username, name.Expires.Add(time.Second), 0); !errors.Is(err, credential.ErrExpired) {
			t.Errorf("a second too late: %v", err)
		}
		// The auth service could have minted the credential, unless its user id has a colon or is not UTF-8. Minting it
		// again gives the same valid credential.
		minted, err := a.Mint(user, time.Hour, name.Expires.Add(-time.Hour))
		if err != nil {
			return
		}
		if again, err := a.Verify(minted.Username, name.Expires, 0); err != nil || again.UserID != user ||
			!again.Expires.Equal(name.Expires) ||
			!bytes.Equal(again.Key, credential.Key(minted.Username, realm, minted.Password)) {
			t.Errorf("%q is minted as %q and verified as %+v, %v", user, minted.Username, again, err)
		}
	})
}

// timestamp parses a user name with numbers of any length: the first part that is a time from 2001-09-09 to the year
// 9999 is the timestamp, the others are the user id.
func timestamp(username string) (seconds int64, user string, ok bool) {
	parts := strings.Split(username, ":")
	for i, part := range parts {
		n, isNumber := new(big.Int).SetString(part, 10)
		if !isNumber || strings.Trim(part, "0123456789") != "" || n.Cmp(big.NewInt(1_000_000_000)) < 0 ||
			n.Cmp(big.NewInt(253_402_300_799)) > 0 {
			continue
		}
		return n.Int64(), strings.Join(slices.Delete(parts, i, i+1), ":"), true
	}
	return 0, "", false
}
