package translate

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// certificate is a certificate chain with its key, in PEM.
type certificate struct {
	chain []byte
	key   []byte
}

func (c certificate) usable() bool { return len(c.chain) > 0 && len(c.key) > 0 }

// encoded is the form in which a config carries it.
func (c certificate) encoded() (cert string, key credential.Secret) {
	return base64.StdEncoding.EncodeToString(c.chain), credential.Secret(base64.StdEncoding.EncodeToString(c.key))
}

// certificateOf returns the certificate of a TLS or DTLS listener: that of its first reference.
func certificateOf(v *resource.View, gw *gwapiv1.Gateway, l *listener) (certificate, condition.Finding) {
	c := certificateRef{view: v, gateway: gw}
	if l.spec.TLS != nil {
		c.refs = l.spec.TLS.CertificateRefs
	}
	if unfit := certificateRules.judge(c); !unfit.OK() {
		return certificate{}, unfit
	}
	return c.pair(), condition.Finding{}
}

// certificateRef is the way from a listener to its certificate.
type certificateRef struct {
	view    *resource.View
	gateway *gwapiv1.Gateway
	refs    []gwapiv1.SecretObjectReference
}

var certificateRules = rules[certificateRef]{
	certificateRef.isPresent,
	certificateRef.isSecret,
	certificateRef.isGranted,
	certificateRef.exists,
	certificateRef.hasKeys,
	certificateRef.fits,
}

func (c certificateRef) isPresent() condition.Finding {
	if len(c.refs) == 0 {
		return condition.CertificateMissing()
	}
	return condition.Finding{}
}

func (c certificateRef) isSecret() condition.Finding {
	group, kind := valueOr(c.refs[0].Group, ""), valueOr(c.refs[0].Kind, "Secret")
	if group != "" || kind != "Secret" {
		return condition.CertificateKind(string(group), string(kind))
	}
	return condition.Finding{}
}

// isGranted holds whatever requireReferenceGrants says: a private key is not lent out silently.
func (c certificateRef) isGranted() condition.Finding {
	from := resource.Referrer{Group: gwapiv1.GroupName, Kind: "Gateway", Namespace: c.gateway.Namespace}
	if !c.view.Granted(from, resource.Target{Kind: "Secret", NamespacedName: c.key()}) {
		return condition.NotGranted("tls.certificateRefs[0]", "Secret "+c.key().String(), c.key().Namespace)
	}
	return condition.Finding{}
}

func (c certificateRef) exists() condition.Finding {
	if c.view.Secret(c.key()) == nil {
		return condition.CertificateSecret(c.key().String(), "does not exist")
	}
	return condition.Finding{}
}

func (c certificateRef) hasKeys() condition.Finding {
	switch pair := c.pair(); {
	case len(pair.chain) == 0:
		return condition.CertificateSecret(c.key().String(), `lacks key "tls.crt"`)
	case len(pair.key) == 0:
		return condition.CertificateSecret(c.key().String(), `lacks key "tls.key"`)
	}
	return condition.Finding{}
}

func (c certificateRef) fits() condition.Finding {
	if _, err := tls.X509KeyPair(c.pair().chain, c.pair().key); err != nil {
		return condition.CertificateBroken(c.key().String(), err)
	}
	return condition.Finding{}
}

func (c certificateRef) key() types.NamespacedName {
	namespace := string(valueOr(c.refs[0].Namespace, ""))
	return types.NamespacedName{Namespace: cmp.Or(namespace, c.gateway.Namespace), Name: string(c.refs[0].Name)}
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
