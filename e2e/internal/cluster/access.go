package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// lifetime is the validity of certificates and tokens. It exceeds the run time of any test.
const lifetime = 24 * time.Hour

// Access holds credentials for the API server, for a client in this process and as a kubeconfig for a program.
type Access struct {
	Config     *rest.Config
	Kubeconfig string // path of the file
}

// User returns access with a client certificate for a user name and groups. Its rights come from RBAC only. A
// ServiceAccount is the user system:serviceaccount:NAMESPACE:NAME in the groups system:serviceaccounts and
// system:serviceaccounts:NAMESPACE.
func (c *Cluster) User(name string, groups ...string) (Access, error) {
	chain, key, err := c.ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return Access{}, fmt.Errorf("give %s access: %w", name, err)
	}
	return c.access(name, &api.AuthInfo{ClientCertificateData: chain, ClientKeyData: key})
}

// Account returns access as a ServiceAccount, with a token from the API server.
func (c *Cluster) Account(ctx context.Context, namespace, name string) (Access, error) {
	token, err := c.Kubectl(ctx, "create", "token", name, "-n", namespace, "--duration", lifetime.String())
	if err != nil {
		return Access{}, fmt.Errorf("give %s access: %w", name, err)
	}
	return c.access(name, &api.AuthInfo{Token: strings.TrimSpace(token)})
}

// access writes a kubeconfig for a credential and loads it.
func (c *Cluster) access(name string, credential *api.AuthInfo) (Access, error) {
	file, err := os.CreateTemp(c.dir, "*.kubeconfig")
	if err != nil {
		return Access{}, fmt.Errorf("give %s access: %w", name, err)
	}
	file.Close()

	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: c.url, CertificateAuthorityData: c.ca.chain}
	config.AuthInfos[name] = credential
	config.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: name}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, file.Name()); err != nil {
		return Access{}, fmt.Errorf("give %s access: %w", name, err)
	}
	client, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return Access{}, fmt.Errorf("give %s access: %w", name, err)
	}
	return Access{Config: client, Kubeconfig: file.Name()}, nil
}

// authority is the CA of the cluster. It also holds the key that signs ServiceAccount tokens.
type authority struct {
	cert     *x509.Certificate
	key      *ecdsa.PrivateKey
	chain    []byte // PEM
	accounts []byte // PEM
}

func newAuthority() (a *authority, err error) {
	a = &authority{cert: &x509.Certificate{
		Subject:               pkix.Name{CommonName: "test"},
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}}
	if a.key, _, err = newKey(); err != nil {
		return nil, err
	}
	if a.chain, err = a.sign(a.cert, &a.key.PublicKey); err != nil {
		return nil, err
	}
	_, a.accounts, err = newKey()
	return a, err
}

// server returns the API server's certificate and key in PEM.
func (a *authority) server() (chain, private []byte, err error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP(harness.Loopback)},
	})
}

// issue returns a new certificate and its key in PEM.
func (a *authority) issue(template *x509.Certificate) (chain, private []byte, err error) {
	key, private, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	chain, err = a.sign(template, &key.PublicKey)
	return chain, private, err
}

func (a *authority) sign(template *x509.Certificate, public *ecdsa.PublicKey) ([]byte, error) {
	now := time.Now()
	template.SerialNumber = big.NewInt(now.UnixNano())
	template.NotBefore, template.NotAfter = now.Add(-time.Minute), now.Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key) // the PEM type that --service-account-key-file accepts
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
