// Package trust is how dataplanes and config discovery come to believe each other's words: a certificate authority that the operator makes
// and renews by itself, the certificates that it signs for a replica, and a port that knows TLS from plain HTTP by its first byte.
//
// An authority is a list of CAs, kept in one place for all replicas. All of them are believed; one signs. A CA lasts a year. When two thirds of
// that are over another one joins the list, signs nothing for a day, because what it signs is believed nowhere before the list has spread, and
// then takes over. The old one stays on the list until it expires.
//
// The package reads no clock: time comes in as a value.
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

// The life of a CA.
const (
	Lifetime = 365 * 24 * time.Hour
	// Overlap is how long a CA that has a predecessor is on the list before it signs.
	Overlap = 24 * time.Hour
	// skew is by how much clocks may differ: certificates are good that much earlier.
	skew = time.Hour
)

// most is how many CAs a list may have: nobody checks a certificate against an endless one.
const most = 8

// The keys of an authority where it is stored.
const (
	CertificatesKey = "ca.crt" // certificates in PEM
	PrivateKey      = "ca.key" // private keys in PEM, in any order; a certificate without one is believed and signs nothing
)

// Authority is who signs the certificates of config discovery, and whose signature is believed: those that are older come first.
type Authority struct{ cas []ca }

type ca struct {
	cert *x509.Certificate
	// key is nil for a CA that is only believed.
	key *ecdsa.PrivateKey
}

// Parse reads what Encode has written. With an error it returns what could be read.
func Parse(data map[string][]byte) (Authority, error) {
	var a Authority
	var errs []error
	for block := range blocks(data[CertificatesKey]) {
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: read certificate: %w", CertificatesKey, err))
		case !cert.IsCA:
			errs = append(errs, fmt.Errorf("%s: %s is no CA: only CA certificates belong here", CertificatesKey, cert.Subject))
		case len(a.cas) == most:
			errs = append(errs, fmt.Errorf("%s: more than %d certificates", CertificatesKey, most))
		default:
			a.cas = append(a.cas, ca{cert: cert})
		}
	}
	for block := range blocks(data[PrivateKey]) {
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: read private key: not an EC key in SEC 1 form", PrivateKey)) // the cause might show some of it
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

// sort puts those first that are older.
func (a Authority) sort() {
	slices.SortStableFunc(a.cas, func(a, b ca) int { return a.cert.NotBefore.Compare(b.cert.NotBefore) })
}

// blocks yields the blocks of a PEM file.
func blocks(data []byte) func(func(*pem.Block) bool) {
	return func(yield func(*pem.Block) bool) {
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			if !yield(block) {
				return
			}
		}
	}
}

// Encode is what is stored of an authority.
func (a Authority) Encode() map[string][]byte {
	var keys bytes.Buffer
	for _, c := range a.cas {
		if !c.signs() {
			continue
		}
		der, err := x509.MarshalECPrivateKey(c.key)
		if err != nil {
			panic(err) // a key on a curve of the standard library
		}
		_ = pem.Encode(&keys, &pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}
	return map[string][]byte{CertificatesKey: []byte(a.Bundle()), PrivateKey: keys.Bytes()}
}

// Bundle are the certificates that are believed, in PEM. They are public.
func (a Authority) Bundle() string {
	var bundle bytes.Buffer
	for _, c := range a.cas {
		_ = pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
	}
	return bundle.String()
}

// Pool are the certificates that are believed.
func (a Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range a.cas {
		pool.AddCert(c.cert)
	}
	return pool
}

// Usable tells whether the authority can sign at a time.
func (a Authority) Usable(now time.Time) bool { return a.signer(now).cert != nil }

// Next is the authority that there should be at a time: without what has expired, and with a CA that is in the first two thirds of its life, which
// has begun: one of a leader whose clock was ahead is believed by nobody yet. It is the same one when nothing has to change.
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
	next := Authority{cas[max(0, len(cas)-most):]}
	next.sort()
	return next, nil
}

// signer is the newest CA that is known widely enough, or the oldest when none is; the zero ca when there is none at all.
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

// since is when the CA was made.
func (c ca) since() time.Time { return c.cert.NotBefore.Add(skew) }

func newCA(now time.Time) (ca, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "stunner config discovery CA"},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(Lifetime),
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // it signs servers, and nobody who signs
	}
	cert, key, err := sign(template, ca{cert: template})
	if err != nil {
		return ca{}, fmt.Errorf("make CA: %w", err)
	}
	return ca{cert: cert, key: key}, nil
}

// sign makes a certificate with a key of its own. One that has no parent with a key signs itself.
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
