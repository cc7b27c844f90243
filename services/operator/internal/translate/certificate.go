package translate

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// certificate is a certificate chain with its key, in PEM.
type certificate struct {
	chain []byte
	key   []byte
}

// encoded is the form in which a config carries it.
func (c certificate) encoded() config.Certificate {
	return config.Certificate{
		Cert: base64.StdEncoding.EncodeToString(c.chain), Key: credential.Secret(base64.StdEncoding.EncodeToString(c.key)),
	}
}

// certificatesOf returns the certificates of a TLS or DTLS listener, and whether one was taken back. A mistake in any of its references
// leaves the listener without all of them, and so as it was published; not so when what was published must not be used any more.
func certificatesOf(v *resource.View, gw *gwapiv1.Gateway, l *listener) (all []certificate, unfit condition.Finding, revoked bool) {
	if l.spec.TLS == nil || len(l.spec.TLS.CertificateRefs) == 0 {
		return nil, condition.CertificateMissing(), false
	}
	for i, ref := range l.spec.TLS.CertificateRefs {
		c := certificateRef{view: v, gateway: gw, ref: ref, field: fmt.Sprintf("tls.certificateRefs[%d]", i)}
		wrong := certificateRules.judge(c)
		if wrong.OK() {
			all = append(all, c.pair())
			continue
		}
		unfit = first(unfit, wrong)
		revoked = revoked || wrong.Reason == condition.ReasonRefNotPermitted
	}
	if !unfit.OK() && !revoked {
		all = nil
	}
	return all, unfit, revoked
}

// certificateRef is the way from a listener to one of its certificates.
type certificateRef struct {
	view    *resource.View
	gateway *gwapiv1.Gateway
	ref     gwapiv1.SecretObjectReference
	field   string
}

var certificateRules = rules[certificateRef]{
	certificateRef.isSecret,
	certificateRef.isGranted,
	certificateRef.exists,
	certificateRef.hasKeys,
	certificateRef.fits,
}

func (c certificateRef) isSecret() condition.Finding {
	group, kind := valueOr(c.ref.Group, ""), valueOr(c.ref.Kind, "Secret")
	if group != "" || kind != "Secret" {
		return condition.CertificateKind(c.field, string(group), string(kind))
	}
	return condition.Finding{}
}

// isGranted wants a ReferenceGrant whatever the GatewayConfig says.
func (c certificateRef) isGranted() condition.Finding {
	from := resource.Referrer{Group: gwapiv1.GroupName, Kind: "Gateway", Namespace: c.gateway.Namespace}
	if !c.view.Granted(from, resource.Target{Kind: "Secret", NamespacedName: c.key()}) {
		return condition.NotGranted(c.field, "Secret "+c.key().String(), c.key().Namespace)
	}
	return condition.Finding{}
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

func (c certificateRef) fits() condition.Finding {
	pair := c.pair()
	if _, err := tls.X509KeyPair(pair.chain, pair.key); err != nil {
		return condition.CertificateBroken(c.field, c.key().String(), pair.problem())
	}
	return condition.Finding{}
}

// problem says what is wrong with a pair that cannot be used, in words of its own: errors of the parsers quote what they have read.
func (c certificate) problem() string {
	switch {
	case !hasBlock(c.chain, func(t string) bool { return t == "CERTIFICATE" }):
		return "tls.crt has no certificate in PEM"
	case !hasBlock(c.key, func(t string) bool { return t == "PRIVATE KEY" || strings.HasSuffix(t, " PRIVATE KEY") }):
		return "tls.key has no private key in PEM"
	}
	return "tls.crt and tls.key cannot be read, or do not belong together"
}

func hasBlock(data []byte, is func(blockType string) bool) bool {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if is(block.Type) {
			return true
		}
	}
	return false
}

func (c certificateRef) key() types.NamespacedName {
	namespace := string(valueOr(c.ref.Namespace, ""))
	return types.NamespacedName{Namespace: cmp.Or(namespace, c.gateway.Namespace), Name: string(c.ref.Name)}
}

// pair reads the keys of a TLS Secret, and the names that people gave them before there was such a type.
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
