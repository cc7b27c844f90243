// Package trust manages the certificates of config discovery: a certificate authority that the operator creates and
// renews, the server certificates that it issues to replicas, and a listener that accepts TLS and plain HTTP on one
// port.
//
// An Authority is a list of CAs that all replicas share. Clients trust all CAs in the list; one CA signs server
// certificates. A CA is valid for a year. After two thirds of the year, a new CA is added to the list. It starts to
// sign a day later, when the list has reached all clients, and the old CA stays on the list until it expires.
//
// Functions that create or renew certificates do not read the clock: time is a parameter.
//
// # Files
//
//	authority.go   CAs and their rotation (their Secret: services/operator/internal/kube/authority.go)
//	identity.go    certificates of replicas
//	listener.go    TLS and plain HTTP on one port
//	forwarding.go  keys of pods that forward to each other
//	standby.go     keys of standby Secrets
package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// Validity of a CA.
const (
	Lifetime = 365 * 24 * time.Hour
	// Overlap is how long a new CA is on the list of trusted CAs before it signs certificates, unless no other CA can
	// sign.
	Overlap = 24 * time.Hour
	// skew is the tolerated clock difference between hosts. Certificates are valid from this time before they are
	// issued.
	skew = time.Hour
)

// maxCAs is the maximum number of CAs in an Authority. It limits the work of a client that verifies a certificate.
const maxCAs = 8

// Keys of the Secret that stores an Authority.
const (
	CertificatesKey = "ca.crt" // certificates in PEM
	// private keys in PEM, in any order; a CA without a private key is trusted but does not sign
	PrivateKey = "ca.key"
)

// Authority is a list of CAs, oldest first.
type Authority struct{ cas []ca }

type ca struct {
	cert *x509.Certificate
	// key is nil for a CA that is trusted but does not sign.
	key *ecdsa.PrivateKey
}

// Parse reads an Authority from the result of Encode. If it returns an error, it also returns the part of the Authority
// that it could read.
func Parse(data map[string][]byte) (Authority, error) {
	var a Authority
	var errs []error
	for block := range blocks(data[CertificatesKey]) {
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: read certificate: %w", CertificatesKey, err))
		case !cert.IsCA:
			errs = append(errs,
				fmt.Errorf("%s: %s is no CA: only CA certificates belong here", CertificatesKey, cert.Subject))
		case len(a.cas) == maxCAs:
			errs = append(errs, fmt.Errorf("%s: more than %d certificates", CertificatesKey, maxCAs))
		default:
			a.cas = append(a.cas, ca{cert: cert})
		}
	}
	for block := range blocks(data[PrivateKey]) {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			// the cause may contain key material
			errs = append(errs, fmt.Errorf("%s: read private key: not an EC key in SEC 1 form", PrivateKey))
			continue
		}
		for i := range a.cas {
			if key.PublicKey.Equal(a.cas[i].cert.PublicKey) {
				a.cas[i].key = key
			}
		}
	}
	a.sort()
	if !slices.ContainsFunc(a.cas, ca.signs) {
		errs = append(errs, fmt.Errorf("no certificate in %s has its key in %s", CertificatesKey, PrivateKey))
	}
	return a, errors.Join(errs...)
}

func (a Authority) sort() {
	slices.SortStableFunc(a.cas, func(a, b ca) int { return a.cert.NotBefore.Compare(b.cert.NotBefore) })
}

// blocks yields the blocks of PEM data.
func blocks(data []byte) func(func(*pem.Block) bool) {
	return func(yield func(*pem.Block) bool) {
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			if !yield(block) {
				return
			}
		}
	}
}

// Encode returns the content for the Secret. Parse reads it.
func (a Authority) Encode() map[string][]byte {
	var keys bytes.Buffer
	for _, c := range a.cas {
		if !c.signs() {
			continue
		}
		der, err := x509.MarshalECPrivateKey(c.key)
		if err != nil {
			panic(err) // impossible for a curve of the standard library
		}
		_ = pem.Encode(&keys, &pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}
	return map[string][]byte{CertificatesKey: []byte(a.Bundle()), PrivateKey: keys.Bytes()}
}

// Bundle returns the certificates of all trusted CAs in PEM. The certificates are not secret.
func (a Authority) Bundle() string {
	var bundle bytes.Buffer
	for _, c := range a.cas {
		_ = pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
	}
	return bundle.String()
}

// Pool returns the certificates of all trusted CAs.
func (a Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range a.cas {
		pool.AddCert(c.cert)
	}
	return pool
}

// Usable reports whether one of the CAs can sign at the given time.
func (a Authority) Usable(now time.Time) bool { return a.signer(now).cert != nil }

// Next returns the authority for the given time. It removes expired CAs, and adds a new CA if no CA with a private key
// is in the first two thirds of its validity. A CA whose validity has not begun does not count, because a leader with a
// wrong clock created it. Above maxCAs, the oldest CAs are removed. If nothing changes, the result equals a.
func (a Authority) Next(now time.Time) (Authority, error) {
	cas := slices.DeleteFunc(slices.Clone(a.cas), func(c ca) bool { return now.After(c.cert.NotAfter) })
	fresh := func(c ca) bool {
		return c.signs() && !now.Before(c.cert.NotBefore) && now.Before(c.since().Add(Lifetime*2/3))
	}
	if !slices.ContainsFunc(cas, fresh) {
		made, err := newCA(now)
		if err != nil {
			return a, err
		}
		cas = append(cas, made)
	}
	next := Authority{cas[max(0, len(cas)-maxCAs):]}
	next.sort()
	return next, nil
}

// signer returns the CA that signs certificates at the given time. Of the CAs with a private key that have not expired,
// it is the newest one that was created at least Overlap ago, or else the oldest one. It returns the zero ca if no CA
// can sign.
func (a Authority) signer(now time.Time) (best ca) {
	for _, c := range a.cas {
		if !c.signs() || now.After(c.cert.NotAfter) {
			continue
		}
		if best.cert == nil || !now.Before(c.since().Add(Overlap)) {
			best = c
		}
	}
	return best
}

func (c ca) signs() bool { return c.key != nil }

// since returns when the CA was created.
func (c ca) since() time.Time { return c.cert.NotBefore.Add(skew) }

func newCA(now time.Time) (ca, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "stunner config discovery CA"},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(Lifetime),
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // the CA signs server certificates only
	}
	cert, key, err := sign(template, ca{cert: template})
	if err != nil {
		return ca{}, fmt.Errorf("make CA: %w", err)
	}
	return ca{cert: cert, key: key}, nil
}

// sign creates a certificate with a new key, signed by the parent. If the parent has no key, the certificate is
// self-signed.
func sign(template *x509.Certificate, parent ca) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	if parent.key == nil {
		parent.key = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, &key.PublicKey, parent.key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}
