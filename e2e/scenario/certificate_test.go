package scenario

import (
	"crypto/x509"
	"encoding/base64"
	"errors"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// certificate makes a key pair. Later calls trust this certificate only.
func certificate(s *stage, ts *testscript.TestScript, _ []string) error {
	chain, key, err := bed.Certificate()
	if err != nil {
		return err
	}
	s.roots = x509.NewCertPool()
	if !s.roots.AppendCertsFromPEM(chain) {
		return errors.New("read certificate back: it holds none")
	}
	ts.Setenv("CERTIFICATE", base64.StdEncoding.EncodeToString(chain))
	ts.Setenv("KEY", base64.StdEncoding.EncodeToString(key))
	return nil
}
