// Package credential makes and checks TURN long-term credentials.
//
// Static credentials are one user name with one password. Ephemeral credentials follow
// draft-uberti-behave-turn-rest-00: the user name carries the time at which it expires, the password is a MAC over the
// whole user name, and so nothing has to be stored.
//
//	username = <unix-expiry-seconds> ":" <user-id>
//	password = base64( HMAC-SHA1( shared secret, username ) )
//
// The package is pure: time comes in as a value.
package credential

import (
	"crypto/hmac"
	"crypto/md5"  // RFC 8489 §9.2.2 fixes the long-term key to MD5
	"crypto/sha1" // draft-uberti-behave-turn-rest-00 §2.2 fixes the MAC
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Redacted is what a Secret prints.
const Redacted = "<redacted>"

// Secret is a string that must not be shown. Every way of printing it gives Redacted; JSON and YAML carry the value,
// because that is how configs travel. string(s) is the one way to read it.
type Secret string

// String returns Redacted, or nothing for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Redacted
}

// GoString is String: %#v must not leak either.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// Format prints Redacted whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue redacts the secret in structured logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Credential is a user name and a password that a TURN client presents, with the time at which it stops working.
type Credential struct {
	Username string
	Password Secret
	// Expires is the zero time for a credential that does not expire.
	Expires time.Time
}

// Authority decides which credentials are good: a static pair, a shared secret for ephemeral ones, or both. The zero
// Authority accepts nobody.
type Authority struct {
	// Realm is the realm that enters the key (RFC 8489 §9.2.2).
	Realm string
	// Username and Password are the static pair; both are set or none.
	Username string
	Password Secret
	// SharedSecret is the key of ephemeral credentials.
	SharedSecret Secret
}

// Reasons for which Authority.Verify refuses a user name. To the client they all look the same (RFC 8489 §9.2.4 allows 401
// only); they differ in counters.
var (
	ErrUnknownUser = errors.New("unknown user name")
	ErrExpired     = errors.New("credential has expired")
)

// Verified is a user name that an Authority knows.
type Verified struct {
	// Key is the long-term key with which the message must be signed.
	Key []byte
	// UserID is the part of the user name that identifies a person: quotas count it.
	UserID string
	// Expires is the zero time for a static credential.
	Expires time.Time
}

// In is the authority that finds the same credentials good in another realm.
func (a Authority) In(realm string) Authority {
	a.Realm = realm
	return a
}

// Verify returns the key with which a message of that user must be signed. It returns ErrUnknownUser for a name that
// this authority cannot have issued; a name that expires more than MaxTTL and clockSkew ahead is one. For an ephemeral
// name that has expired it returns ErrExpired together with what it would have verified: whether a live session may
// continue is the caller's decision.
func (a Authority) Verify(username string, now time.Time) (Verified, error) {
	if a.Username != "" && username == a.Username {
		return Verified{Key: Key(username, a.Realm, a.Password), UserID: username}, nil
	}
	if a.SharedSecret == "" {
		return Verified{}, ErrUnknownUser
	}
	expires, userID, ok := ParseUsername(username)
	if !ok || expires.After(now.Add(MaxTTL+clockSkew)) {
		return Verified{}, ErrUnknownUser
	}
	v := Verified{Key: Key(username, a.Realm, sign(a.SharedSecret, username)), UserID: userID, Expires: expires}
	if now.After(expires) {
		return v, ErrExpired
	}
	return v, nil
}

// Guessable tells whether a client can find the password of a user name by trying. It can for static names, and for
// ephemeral names under a shared secret of less than StrongSecret bytes. A name that Verify does not know counts as
// guessable as well: how the caller treats it must not tell which names exist.
func (a Authority) Guessable(username string) bool {
	if len(a.SharedSecret) < StrongSecret || a.Username != "" && username == a.Username {
		return true
	}
	_, _, ok := ParseUsername(username)
	return !ok
}

// StrongSecret is the length in bytes from which a password or a shared secret cannot be found by trying: 16 random
// bytes have 128 bits.
const StrongSecret = 16

// Mint returns a credential for a user: an ephemeral one when the authority has a shared secret, else the static pair, whatever
// the user and the time to live. It fails for an authority that accepts nobody and for a user id or ttl that Verify
// could not read back.
func (a Authority) Mint(userID string, ttl time.Duration, now time.Time) (Credential, error) {
	switch {
	case a.SharedSecret != "":
		if strings.Contains(userID, ":") {
			return Credential{}, errors.New("mint credential: user id must not contain ':', which separates it from the expiry")
		}
		if ttl < time.Second || ttl > MaxTTL {
			return Credential{}, fmt.Errorf("mint credential: ttl %s: must be between 1s and %s", ttl, MaxTTL)
		}
		expires := now.Add(ttl).Truncate(time.Second)
		username := strconv.FormatInt(expires.Unix(), 10) + ":" + userID
		if len(username) > maxUsername || !utf8.ValidString(userID) {
			return Credential{}, fmt.Errorf("mint credential: user id: must be UTF-8 of at most %d bytes", maxUsername-len("1234567890:"))
		}
		return Credential{Username: username, Password: sign(a.SharedSecret, username), Expires: expires}, nil
	case a.Username != "":
		return Credential{Username: a.Username, Password: a.Password}, nil
	}
	return Credential{}, errors.New("mint credential: the gateway has no TURN credentials")
}

// MaxTTL is the longest lifetime of an ephemeral credential. Mint refuses a longer one, and Verify a name that expires later.
const MaxTTL = 366 * 24 * time.Hour

// clockSkew is how far the clock of the service that mints a credential may be ahead of the clock of the dataplane that verifies it.
const clockSkew = time.Minute

// maxUsername is how many bytes a STUN USERNAME can hold (RFC 8489 §14.3).
const maxUsername = 508

// plausible is the first timestamp that is read as an expiry rather than as a numeric user id: 2001-09-09.
const plausible = 1_000_000_000

// latest is the last second that fits a four-digit year; it keeps time arithmetic away from overflow.
const latest = 253_402_300_799

// ParseUsername splits the user name of an ephemeral credential into expiry and user id. The timestamp may stand before or
// after the user id, or alone; the first plausible one counts, so that a number as a user id is no expiry.
func ParseUsername(username string) (expires time.Time, userID string, ok bool) {
	parts := strings.Split(username, ":")
	for i, p := range parts {
		seconds, err := strconv.ParseInt(p, 10, 64)
		if err != nil || seconds < plausible || seconds > latest || p[0] == '+' {
			continue
		}
		rest := append(append([]string{}, parts[:i]...), parts[i+1:]...)
		return time.Unix(seconds, 0), strings.Join(rest, ":"), true
	}
	return time.Time{}, "", false
}

// Key is the long-term key MD5(username ":" realm ":" password) of RFC 8489 §9.2.2.
func Key(username, realm string, password Secret) []byte {
	sum := md5.Sum([]byte(username + ":" + realm + ":" + string(password)))
	return sum[:]
}

func sign(secret Secret, username string) Secret {
	mac := hmac.New(sha1.New, []byte(secret))
	mac.Write([]byte(username))
	return Secret(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
