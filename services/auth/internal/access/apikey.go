package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"strings"
	"time"
)

// Hash is the SHA-256 hash of an API key. A slow hash, as for passwords, would protect keys that can be guessed. An API
// key has 256 random bits, so it cannot be guessed. With a slow hash, callers with wrong keys could use up the CPU of
// the service.
type Hash [sha256.Size]byte

const hashPrefix = "sha256:"

// parseHash parses "sha256:" with 64 hexadecimal digits.
func parseHash(text string) (h Hash, err error) {
	digits, ok := strings.CutPrefix(text, hashPrefix)
	if !ok || len(digits) != 2*len(h) {
		return h, errors.New("must be sha256: and 64 hexadecimal digits, as stunnerctl auth key new prints them")
	}
	if _, err := hex.Decode(h[:], []byte(digits)); err != nil {
		return h, errors.New("must be sha256: and 64 hexadecimal digits, as stunnerctl auth key new prints them")
	}
	return h, nil
}

// maxAPIKey is the maximum length of a presented API key in bytes.
const maxAPIKey = 512

// findKey returns the API key whose hash a presented key has. It compares all hashes in constant time, so that the time
// does not depend on whether a key is known, or on its position in the list.
func findKey(keys []APIKey, presented string, now time.Time) (*APIKey, error) {
	if len(presented) > maxAPIKey {
		return nil, refuse(APIKeyUnknown, "the API key is longer than %d bytes", maxAPIKey)
	}
	sum, found := sha256.Sum256([]byte(presented)), -1
	for i := range keys {
		for h := range keys[i].Hashes {
			equal := subtle.ConstantTimeCompare(sum[:], keys[i].Hashes[h][:])
			found = subtle.ConstantTimeSelect(equal, i, found)
		}
	}
	switch {
	case found < 0:
		return nil, refuse(APIKeyUnknown, "no API key of the policy has the hash")
	case !keys[found].Expires.IsZero() && !now.Before(keys[found].Expires):
		return nil, refuse(APIKeyExpired, "API key %s has expired", keys[found].Name)
	}
	return &keys[found], nil
}

// identity returns the identity of a caller with the key.
func (k *APIKey) identity() (Identity, error) {
	user := k.User
	if user.parts == nil {
		user = chosenTemplate
	}
	user, err := user.expand(map[string]string{fieldName: k.Name}, nil)
	if err != nil {
		return Identity{}, err
	}
	who := Identity{
		Known: true, Key: k.Name, Caller: "key " + k.Name, Expires: k.Expires, Grant: k.Grant, Caveats: k.Scope, user: user,
	}
	return who.withUserID()
}
