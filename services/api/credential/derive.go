package credential

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// derivation is the context of the keys that Derive makes (RFC 5869 §3.2). Another way to derive needs another version.
const derivation = "stunner.l7mp.io/signing-key/v1 "

// derivedSize is the size of a derived key in bytes, as much as the hash gives at once.
const derivedSize = sha256.Size

// Derive returns the shared secret of one gateway, which a name stands for. Nobody can tell the secret that it was derived from, nor that of another
// gateway, by it. The same arguments give the same secret.
func (s Secret) Derive(gateway string) (Secret, error) {
	key, err := hkdf.Key(sha256.New, []byte(s), nil, derivation+gateway, derivedSize)
	if err != nil {
		return "", fmt.Errorf("derive signing key: %w", err)
	}
	return Secret(base64.RawURLEncoding.EncodeToString(key)), nil
}
