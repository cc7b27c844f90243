package browser

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// certificate makes a certificate authority, as a file, and a Secret with a certificate for the loopback address from
// it.
func certificate(t *testing.T) (authority string, secret []byte) {
	t.Helper()
	now := time.Now()
	template := func(name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true,
		}
	}
	issuer := template("authority of a test")
	issuer.IsCA, issuer.KeyUsage = true, x509.KeyUsageCertSign
	issuerKey := newKey(t)
	authority = filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(authority, sign(t, issuer, issuer, issuerKey, issuerKey), 0o600); err != nil {
		t.Fatal(err)
	}

	leaf := template("gateway of a test")
	leaf.KeyUsage, leaf.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leaf.IPAddresses = []net.IP{net.ParseIP(bed.Loopback)}
	key := newKey(t)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.StdEncoding.EncodeToString
	return authority, fmt.Appendf(nil, secretYAML, text(sign(t, leaf, issuer, key, issuerKey)),
		text(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

const secretYAML = `apiVersion: v1
kind: Secret
metadata:
  name: front-door-certificate
  namespace: meet
type: kubernetes.io/tls
data:
  tls.crt: %s
  tls.key: %s
`

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign issues a certificate in PEM.
func sign(t *testing.T, template, issuer *x509.Certificate, key, issuerKey *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), issuerKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
