package trust

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// StandbyKeys returns the keys that authenticate standby Secrets. The first key is derived from the CA that signs now,
// and authenticates new Secrets. The others are derived from the other CAs with a private key, so that a Secret stays
// authentic for months after a new CA has begun to sign. If no CA can sign, it returns no keys.
func (a Authority) StandbyKeys(now time.Time) (keys [][]byte, err error) {
	by := a.signer(now)
	if !by.signs() {
		return nil, nil
	}
	for _, c := range append([]ca{by}, a.cas...) {
		if !c.signs() || len(keys) > 0 && c.cert.Equal(by.cert) {
			continue
		}
		key, err := c.derive("", "standby Secrets")
		if err != nil {
			return nil, fmt.Errorf("derive keys of standby Secrets: %w", err)
		}
		keys = append(keys, key)
	}
	return slices.Clip(keys), nil
}

// derive returns a key of 32 bytes that is derived from the private key of a CA.
func (c ca) derive(salt, info string) ([]byte, error) {
	root, err := c.key.Bytes()
	if err != nil {
		return nil, err
	}
	return hkdf.Key(sha256.New, root, []byte(salt), info, 32)
}
