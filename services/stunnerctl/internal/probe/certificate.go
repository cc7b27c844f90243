package probe

import (
	"bytes"
	"crypto/x509"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

// certificate describes the certificates that a server has sent, the leaf certificate first, at the time now.
func certificate(served []*x509.Certificate, host string, now time.Time) *diagnose.ServedCertificate {
	leaf := served[0]
	c := &diagnose.ServedCertificate{
		Subject: leaf.Subject.String(), Issuer: leaf.Issuer.String(), Names: config.CertificateNames(leaf), NotBefore: leaf.NotBefore,
		NotAfter: leaf.NotAfter, Sent: len(served), NameMatches: leaf.VerifyHostname(host) == nil,
		SelfSigned: bytes.Equal(leaf.RawSubject, leaf.RawIssuer) && leaf.CheckSignatureFrom(leaf) == nil ||
			bytes.Equal(leaf.RawSubject, leaf.RawIssuer) && !leaf.IsCA,
	}
	if last := served[len(served)-1]; len(last.IssuingCertificateURL) > 0 {
		c.IssuerURL = last.IssuingCertificateURL[0]
	}
	between := x509.NewCertPool()
	for _, more := range served[1:] {
		between.AddCert(more)
	}
	at := now
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		at = leaf.NotAfter // another rule checks the expiry of the certificate
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	c.Trusted = err == nil
	for _, issuer := range served[1:] {
		if !c.Trusted && at.After(issuer.NotAfter) {
			c.ExpiredIssuer = issuer.Subject.String()
		}
	}
	return c
}
