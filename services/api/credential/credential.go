// Package credential mints and verifies TURN long-term credentials.
//
// Static credentials are one user name with one password. Ephemeral credentials follow
// draft-uberti-behave-turn-rest-00: the user name contains the expiry, and the password is a MAC of the user name, so
// that nothing has to be stored.
//
//	username = <unix-expiry-seconds> ":" <user-id> [ ":" <caveats> ]
//	password = base64( HMAC-SHA1( shared secret, username ) )
//
// The MAC signs the whole user name. So the user name can also contain limits of the credential, see Caveats. Other
// TURN servers that verify such credentials treat the caveats as a part of the user id.
//
// The package does no I/O, and the time is an argument.
//
// # Files
//
//	credential.go  authorities, which mint and verify
//	username.go    the parts of a user name
//	caveats.go     caveats, their text form, and how they narrow
//	revocation.go  credentials that are refused before they expire
//	derive.go      shared secrets of gateways
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

// Redacted is the text that is printed instead of a Secret.
const Redacted = "<redacted>"

// Secret is a string that must not be shown. All verbs of package fmt print Redacted. JSON and YAML contain the value,
// because configs are transported in these formats. The conversion string(s) is the only other way to read the value.
type Secret string

// String returns Redacted, or nothing for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Redacted
}

// GoString returns the quoted String, for %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// Format prints Redacted for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue redacts the secret in structured logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Credential is the user name and password of a TURN client, with its expiry.
type Credential struct {
	Username string
	Password Secret
	// Expires is the zero time for a credential that does not expire.
	Expires time.Time
}

// Authority verifies and mints credentials: a static pair, ephemeral credentials with a shared secret, or both. The
// zero Authority accepts no credential.
type Authority struct {
	// Realm is the realm from which the long-term key is derived (RFC 8489 §9.2.2).
	Realm string
	// Username is the user name of the static pair. It is empty if there is no static pair.
	Username string
	// Password is the password of the static pair.
	Password Secret
	// SharedSecret is the key of ephemeral credentials.
	SharedSecret Secret
}

// Errors of Authority.Verify, in addition to ErrCaveatMalformed and ErrCaveatUnknown. A client receives 401 for each of
// them (RFC 8489 §9.2.4), but metrics distinguish them.
var (
	ErrUnknownUser = errors.New("unknown user name")
	ErrExpired     = errors.New("credential has expired")
	ErrNotYet      = errors.New("credential is not valid yet")
)

// Verified is the result of Authority.Verify.
type Verified struct {
	// Key is the long-term key with which the message must be signed.
	Key []byte
	// UserID is the part of the user name that identifies the user, for quotas.
	UserID string
	// Expires is the zero time for a static credential.
	Expires time.Time
	// Caveats are the limits of the credential. The caller enforces them, except for NotBefore.
	Caveats Caveats
}

// In returns a copy of the authority with another realm.
func (a Authority) In(realm string) Authority {
	a.Realm = realm
	return a
}

// Verify returns the key with which a message of a user must be signed. It returns ErrUnknownUser for a name that this
// authority cannot have issued. Any other error comes together with the key, so that the caller can distinguish a wrong
// password from an error in the signed user name, and can let a live session continue after ErrExpired. An ephemeral
// name may expire later than MaxTTL, because other services that have the shared secret may mint it. leeway is how far
// the clock of the service that minted the name may differ.
func (a Authority) Verify(username string, now time.Time, leeway time.Duration) (Verified, error) {
	if a.Username != "" && username == a.Username {
		return Verified{Key: Key(username, a.Realm, a.Password), UserID: username}, nil
	}
	if a.SharedSecret == "" {
		return Verified{}, ErrUnknownUser
	}
	name, err := ParseUsername(username)
	if errors.Is(err, ErrUnknownUser) {
		return Verified{}, err
	}
	v := Verified{
		Key: Key(username, a.Realm, sign(a.SharedSecret, username)), UserID: name.UserID, Expires: name.Expires,
		Caveats: name.Caveats,
	}
	switch {
	case err != nil:
		return v, err
	case now.After(name.Expires.Add(leeway)):
		return v, ErrExpired
	case now.Add(leeway).Before(time.Unix(name.Caveats.NotBefore, 0)):
		return v, ErrNotYet
	}
	return v, nil
}

// Guessable reports whether the password of a user name can be found by trying. This is the case for static names, and
// for ephemeral names with a shared secret shorter than StrongSecret. It is also true for names that Verify does not
// accept, so that the behavior of the caller does not reveal which names exist.
func (a Authority) Guessable(username string) bool {
	if len(a.SharedSecret) < StrongSecret || a.Username != "" && username == a.Username {
		return true
	}
	_, err := ParseUsername(username)
	return errors.Is(err, ErrUnknownUser)
}

// StrongSecret is the minimum length in bytes of a password or shared secret that cannot be found by trying: 16 random
// bytes have 128 bits.
const StrongSecret = 16

// Mint is MintWith without caveats.
func (a Authority) Mint(userID string, ttl time.Duration, now time.Time) (Credential, error) {
	return a.MintWith(Caveats{}, userID, ttl, now)
}

// Errors of MintWith that depend on the caveats.
var (
	// ErrStatic is the error for caveats if the authority has no shared secret.
	ErrStatic = errors.New("mint credential: caveats need a shared secret: the user name of a static credential is fixed")
	// ErrTooLong is the error for a user id and caveats that do not fit into a user name.
	ErrTooLong = fmt.Errorf(
		"mint credential: user id and caveats: the user name must have at most %d bytes: name fewer routes", maxUsername)
)

// MintWith returns a credential for a user: an ephemeral credential with caveats if the authority has a shared secret,
// or else the static credential, which does not depend on userID and ttl, and has no caveats. It returns an error for
// the zero Authority, for caveats that ParseCaveats would not accept, for a userID that Verify would not accept or a
// ttl above MaxTTL, and for a time whose expiry ParseUsername would not find.
func (a Authority) MintWith(c Caveats, userID string, ttl time.Duration, now time.Time) (Credential, error) {
	switch {
	case a.SharedSecret != "":
		return a.mint(c, userID, ttl, now)
	case a.Username != "" && !c.IsZero():
		return Credential{}, ErrStatic
	case a.Username != "":
		return Credential{Username: a.Username, Password: a.Password}, nil
	}
	return Credential{}, errors.New("mint credential: the gateway has no TURN credentials")
}

func (a Authority) mint(c Caveats, userID string, ttl time.Duration, now time.Time) (Credential, error) {
	if !c.IsZero() {
		if err := c.Validate(); err != nil {
			return Credential{}, fmt.Errorf("mint credential: %w", err)
		}
	}
	switch {
	case strings.Contains(userID, separator):
		return Credential{}, errors.New(
			"mint credential: user id must not contain ':', which separates it from the expiry")
	case Marked(userID):
		return Credential{}, errors.New("mint credential: user id must not begin like caveats: '~', digits, '~'")
	case ttl < time.Second || ttl > MaxTTL:
		return Credential{}, fmt.Errorf("mint credential: ttl %s: must be between 1s and %s", ttl, MaxTTL)
	}
	expires := now.Add(ttl).Truncate(time.Second)
	if expires.Unix() < firstExpiry || expires.Unix() > lastExpiry {
		// A user id that is a number would be read as the expiry.
		return Credential{}, fmt.Errorf("mint credential: the clock is at %s: set it by NTP", now.UTC().Format(time.RFC3339))
	}
	username := strconv.FormatInt(expires.Unix(), 10) + separator + userID
	if len(username) > maxUsername || !utf8.ValidString(userID) {
		return Credential{}, fmt.Errorf("mint credential: user id: must be UTF-8 of at most %d bytes",
			maxUsername-len("1234567890:"))
	}
	if !c.IsZero() {
		username += separator + c.String()
	}
	if len(username) > maxUsername {
		return Credential{}, ErrTooLong
	}
	return Credential{Username: username, Password: sign(a.SharedSecret, username), Expires: expires}, nil
}

// MaxTTL is the longest lifetime of an ephemeral credential of Mint.
const MaxTTL = 366 * 24 * time.Hour

// maxUsername is the maximum length of a STUN USERNAME in bytes (RFC 8489 §14.3).
const maxUsername = 508

// Key returns the long-term key MD5(username ":" realm ":" password) of RFC 8489 §9.2.2.
func Key(username, realm string, password Secret) []byte {
	sum := md5.Sum([]byte(username + ":" + realm + ":" + string(password)))
	return sum[:]
}

func sign(secret Secret, username string) Secret {
	mac := hmac.New(sha1.New, []byte(secret))
	mac.Write([]byte(username))
	return Secret(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
