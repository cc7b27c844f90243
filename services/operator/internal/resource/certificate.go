package resource

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Limits of the parts of a certificate Secret in bytes. Chains of public authorities have less than 10 KiB; the
// private key of an RSA certificate with 8,192 bits, the largest that TLS libraries accept, has 6.4 KiB.
const (
	MaxCertificateChain = 64 << 10
	MaxCertificateKey   = 8 << 10
)

// Certificate is the parsed certificate in a Secret of a listener.
type Certificate struct {
	// Encoded is the certificate in the format of a config. All listeners that use the certificate share its texts.
	Encoded config.Certificate
	// Names are the DNS names and IP addresses for which clients accept the certificate.
	Names []string
	// Problem says why the certificate cannot be used; "" if it can. It never quotes the content of the Secret. For a
	// Secret that contains something else as well, it is a predicate: "lacks key …".
	Problem string
	// Warning says why clients may reject the certificate, which can be used; "" if there is no reason.
	Warning string
	// Absent means that the Secret lacks the certificate or its key.
	Absent bool
}

// Size returns the number of bytes that the certificate takes in a config.
func (c *Certificate) Size() int { return len(c.Encoded.Cert) + len(c.Encoded.Key) }

// ParseCertificate reads the certificate from the keys of a Secret of type kubernetes.io/tls. It also accepts the key
// names that are common in Secrets of other types. It takes some milliseconds for a large RSA key.
func ParseCertificate(s *corev1.Secret) *Certificate {
	chain := firstValue(s, "tls.crt", "crt", "cert")
	key := firstValue(s, "tls.key", "key")
	switch {
	case len(chain) == 0:
		return &Certificate{Absent: true, Problem: `lacks key "tls.crt"`}
	case len(key) == 0:
		return &Certificate{Absent: true, Problem: `lacks key "tls.key"`}
	case len(chain) > MaxCertificateChain:
		return &Certificate{Problem: fmt.Sprintf("tls.crt has more than %d bytes: keep only the chain", MaxCertificateChain)}
	case len(key) > MaxCertificateKey:
		return &Certificate{Problem: fmt.Sprintf("tls.key has more than %d bytes: keep only the private key", MaxCertificateKey)}
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return &Certificate{Problem: pairProblem(chain, key)}
	}
	names := config.CertificateNames(pair.Leaf)
	return &Certificate{Names: names, Warning: chainProblem(pair, s.Data["ca.crt"]), Encoded: config.Certificate{
		Cert: base64.StdEncoding.EncodeToString(chain),
		Key:  credential.Secret(base64.StdEncoding.EncodeToString(key)),
	}}
}

// firstValue returns the first value of these keys that is not empty.
func firstValue(s *corev1.Secret, keys ...string) []byte {
	for _, key := range keys {
		if value := s.Data[key]; len(value) > 0 {
			return value
		}
	}
	return nil
}

// pairProblem describes why a certificate and its private key cannot be used. It does not include errors of the
// parsers, because they quote their input, which may be a private key.
func pairProblem(chain, key []byte) string {
	isKey := func(t string) bool { return t == "PRIVATE KEY" || strings.HasSuffix(t, " PRIVATE KEY") }
	switch {
	case !hasBlock(chain, func(t string) bool { return t == "CERTIFICATE" }):
		return "tls.crt has no certificate in PEM: write the certificate and those of its issuers there"
	case !hasBlock(key, isKey):
		return "tls.key has no private key in PEM: write it there"
	case isEncrypted(key):
		return "tls.key is encrypted: remove the passphrase, for example with openssl pkey -in tls.key"
	case matchesLater(chain, key):
		return "tls.crt begins with the certificate of an issuer: write the certificate of the server first, then those of its issuers"
	}
	return "tls.crt and tls.key cannot be read, or do not belong together: write the private key of the first certificate"
}

// isEncrypted reports whether a private key has a passphrase. It is then a block of PKCS #8 (RFC 5958), or a block with
// the header of RFC 1421, which OpenSSL writes.
func isEncrypted(key []byte) bool {
	for block, rest := pem.Decode(key); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED") {
			return true
		}
	}
	return false
}

// matchesLater reports whether the private key belongs to a certificate that is not the first one. Each certificate is
// tried as the first one, so their number is limited.
func matchesLater(chain, key []byte) bool {
	const most = 10
	_, rest := pem.Decode(chain)
	for range most {
		if len(rest) == 0 {
			return false
		}
		if _, err := tls.X509KeyPair(rest, key); err == nil {
			return true
		}
		_, rest = pem.Decode(rest)
	}
	return false
}

// chainProblem describes why clients may reject a certificate: TLS requires that each certificate is followed by the
// certificate of its issuer, and only the root may be missing (RFC 8446 §4.4.2). authorities are the certificates that
// clients trust according to the Secret, which cert-manager writes. A certificate whose issuer signed itself needs no
// other one.
func chainProblem(pair tls.Certificate, authorities []byte) string {
	var chain []*x509.Certificate
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return ""
		}
		chain = append(chain, c)
	}
	issues := func(issuer, c *x509.Certificate) bool { return bytes.Equal(issuer.RawSubject, c.RawIssuer) }
	for i, c := range chain[:len(chain)-1] {
		if issues(chain[i+1], c) {
			continue
		}
		for _, other := range chain {
			if other != c && issues(other, c) {
				return "tls.crt has its certificates in another order than TLS requires: write each certificate before that of its issuer"
			}
		}
	}
	leaf := chain[0]
	if len(chain) > 1 || issues(leaf, leaf) {
		return ""
	}
	for block, rest := pem.Decode(authorities); block != nil; block, rest = pem.Decode(rest) {
		if root, err := x509.ParseCertificate(block.Bytes); err == nil && issues(root, leaf) {
			return ""
		}
	}
	return "tls.crt has no certificate of its issuer, and clients that know only the root reject it: add the intermediate certificates"
}

// hasBlock reports whether PEM data has a block whose type the function accepts.
func hasBlock(data []byte, is func(blockType string) bool) bool {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if is(block.Type) {
			return true
		}
	}
	return false
}

// Certificate returns the certificate in a Secret, or nil if the Secret does not exist. A Secret is parsed once.
func (v *View) Certificate(key types.NamespacedName) *Certificate {
	s := v.Secret(key)
	if s == nil {
		return nil
	}
	c := v.certificates[key]
	if c == nil {
		c = ParseCertificate(s)
		v.certificates[key] = c
	}
	return c
}

// SetCertificate stores the result of [ParseCertificate] for a Secret in the view, so that a caller can parse the
// Secret in a goroutine of its own. It is valid until the next Put of the Secret.
func (v *View) SetCertificate(key types.NamespacedName, c *Certificate) { v.certificates[key] = c }
