package translate

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// certificate is a certificate chain with its private key, both in PEM.
type certificate struct {
	chain []byte
	key   []byte
}

// encoded returns the certificate in the format of a config: chain and private key are the base64 encoding of their PEM
// text.
func (c certificate) encoded() config.Certificate {
	return config.Certificate{
		Cert: base64.StdEncoding.EncodeToString(c.chain),
		Key:  credential.Secret(base64.StdEncoding.EncodeToString(c.key)),
	}
}

// certificates are the certificates of a TLS or DTLS listener, and the findings about their references.
type certificates struct {
	all     []certificate
	finding condition.Finding
	// revoked means that a certificate reference of the listener is not permitted, for example because its
	// ReferenceGrant was removed. The published certificate must then not stay in use, so all contains only the
	// certificates of permitted references. After any other problem all is empty, and the listener keeps its published
	// certificates, see held.go.
	revoked bool
	// ungranted are the findings about certificates that are used without a ReferenceGrant.
	ungranted []condition.Finding
}

// certificatesOf returns the certificates of a TLS or DTLS listener. With legacyGrants, no reference needs a
// ReferenceGrant.
func certificatesOf(v *resource.View, gw *gwapiv1.Gateway, l gwapiv1.Listener, legacyGrants bool) (c certificates) {
	if l.TLS == nil || len(l.TLS.CertificateRefs) == 0 {
		return certificates{finding: condition.CertificateMissing()}
	}
	for i, ref := range l.TLS.CertificateRefs {
		r := certificateRef{
			view: v, gateway: gw, ref: ref, field: fmt.Sprintf("tls.certificateRefs[%d]", i), legacyGrants: legacyGrants,
		}
		wrong := certificateRules.firstFinding(r)
		if wrong.OK() {
			c.all, c.ungranted = append(c.all, r.pair()), append(c.ungranted, r.missingGrant())
			continue
		}
		c.finding = first(c.finding, wrong)
		c.revoked = c.revoked || wrong.Reason == condition.ReasonRefNotPermitted
	}
	if !c.finding.OK() && !c.revoked {
		c.all = nil
	}
	return c
}

// certificateRef is an entry of tls.certificateRefs of a listener.
type certificateRef struct {
	view    *resource.View
	gateway *gwapiv1.Gateway
	ref     gwapiv1.SecretObjectReference
	field   string
	// legacyGrants is spec.legacyGrants of the class's GatewayConfig.
	legacyGrants bool
}

var certificateRules = rules[certificateRef]{
	certificateRef.isSecret,
	certificateRef.isGranted,
	certificateRef.exists,
	certificateRef.hasKeys,
	certificateRef.pairMatches,
}

func (c certificateRef) isSecret() condition.Finding {
	group, kind := ptr.Deref(c.ref.Group, ""), ptr.Deref(c.ref.Kind, "Secret")
	if group != "" || kind != "Secret" {
		return condition.CertificateKind(c.field, string(group), string(kind))
	}
	return condition.Finding{}
}

// isGranted requires a ReferenceGrant for a certificate Secret in another namespace, as the Gateway API demands, unless
// spec.legacyGrants is set. It does so even if spec.requireReferenceGrants of the GatewayConfig is false.
func (c certificateRef) isGranted() condition.Finding {
	if !c.legacyGrants && !c.granted() {
		return condition.NotGranted(c.field, "Secret "+c.key().String(), c.key().Namespace)
	}
	return condition.Finding{}
}

func (c certificateRef) granted() bool {
	from := resource.Referrer{Group: gwapiv1.GroupName, Kind: resource.KindGateway, Namespace: c.gateway.Namespace}
	return c.view.Granted(from, resource.Target{Kind: "Secret", NamespacedName: c.key()})
}

// missingGrant warns if the certificate is used without a ReferenceGrant.
func (c certificateRef) missingGrant() condition.Finding {
	if c.granted() {
		return condition.Finding{}
	}
	return condition.GrantWarning(c.field, c.gateway.Namespace, c.key().Namespace, c.key().Name)
}

func (c certificateRef) exists() condition.Finding {
	if c.view.Secret(c.key()) == nil {
		return condition.CertificateSecret(c.field, c.key().String(), "does not exist")
	}
	return condition.Finding{}
}

func (c certificateRef) hasKeys() condition.Finding {
	switch pair := c.pair(); {
	case len(pair.chain) == 0:
		return condition.CertificateSecret(c.field, c.key().String(), `lacks key "tls.crt"`)
	case len(pair.key) == 0:
		return condition.CertificateSecret(c.field, c.key().String(), `lacks key "tls.key"`)
	}
	return condition.Finding{}
}

func (c certificateRef) pairMatches() condition.Finding {
	pair := c.pair()
	if _, err := tls.X509KeyPair(pair.chain, pair.key); err != nil {
		return condition.CertificateBroken(c.field, c.key().String(), pair.problem())
	}
	return condition.Finding{}
}

// problem describes why a certificate and its private key cannot be used. It does not include errors of the parsers,
// because they quote their input, which may be a private key.
func (c certificate) problem() string {
	switch {
	case !hasBlock(c.chain, func(t string) bool { return t == "CERTIFICATE" }):
		return "tls.crt has no certificate in PEM"
	case !hasBlock(c.key, func(t string) bool { return t == "PRIVATE KEY" || strings.HasSuffix(t, " PRIVATE KEY") }):
		return "tls.key has no private key in PEM"
	}
	return "tls.crt and tls.key cannot be read, or do not belong together"
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

func (c certificateRef) key() types.NamespacedName {
	namespace := string(ptr.Deref(c.ref.Namespace, ""))
	return types.NamespacedName{Namespace: cmp.Or(namespace, c.gateway.Namespace), Name: string(c.ref.Name)}
}

// pair reads the certificate from the keys of a Secret of type kubernetes.io/tls. It also accepts the key names that
// are common in Secrets of other types.
func (c certificateRef) pair() certificate {
	data := c.view.Secret(c.key()).Data
	var pair certificate
	for _, name := range []string{"tls.crt", "crt", "cert"} {
		if len(pair.chain) == 0 {
			pair.chain = data[name]
		}
	}
	for _, name := range []string{"tls.key", "key"} {
		if len(pair.key) == 0 {
			pair.key = data[name]
		}
	}
	return pair
}
