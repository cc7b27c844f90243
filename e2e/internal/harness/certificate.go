package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"
)

// validity is the time for which certificates are valid, in days. It is longer than the time before which the product
// warns of an expiry.
const validity = 365

// Certificate makes a self-signed certificate for the loopback address and the given addresses. Certificate and private
// key are returned in PEM.
func Certificate(more ...netip.Addr) (chain, private []byte, err error) {
	return (&Authority{}).Issue(more...)
}

// Authority is a CA. The zero value issues self-signed certificates.
type Authority struct {
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes a CA.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	template := certificate()
	template.Subject.CommonName = "CA of a test"
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	return &Authority{parsed, key}, nil
}

// certificate returns a template without a purpose.
func certificate() *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Minute), NotAfter: now.AddDate(0, 0, validity),
	}
}

// Issue makes a certificate for the loopback address and the given addresses. Certificate and private key are returned
// in PEM.
func (a *Authority) Issue(addresses ...netip.Addr) (chain, private []byte, err error) {
	template := certificate()
	template.IPAddresses = []net.IP{net.ParseIP(Loopback)}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, address.AsSlice())
	}
	return a.issue(template)
}

// IssueNames is Issue for DNS names, without any address.
func (a *Authority) IssueNames(names ...string) (chain, private []byte, err error) {
	template := certificate()
	template.DNSNames = names
	return a.issue(template)
}

func (a *Authority) issue(template *x509.Certificate) (chain, private []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate: %w", err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	parent, signer := a.Certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate: %w", err)
	}
	return encodePEM("CERTIFICATE", der), encodePEM("PRIVATE KEY", pkcs8), nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
