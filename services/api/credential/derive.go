package credential

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// derivation is the info parameter of HKDF (RFC 5869 §3.2). If the derivation changes, its version must change too.
const derivation = "stunner.l7mp.io/signing-key/v1 "

// derivedSize is the size of a derived key in bytes: one output of the hash.
const derivedSize = sha256.Size

// Derive derives the shared secret of a gateway from s. The result does not reveal s or the secrets of other gateways.
// The same arguments give the same result.
func (s Secret) Derive(gateway string) (Secret, error) {
	key, err := hkdf.Key(sha256.New, []byte(s), nil, derivation+gateway, derivedSize)
	if err != nil {
		return "", fmt.Errorf("derive signing key: %w", err)
	}
	return Secret(base64.RawURLEncoding.EncodeToString(key)), nil
}
