package translate

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// certificates are the certificates of a TLS or DTLS listener, and the findings about their references.
type certificates struct {
	all     []*resource.Certificate
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
			view: v, gateway: gw, ref: ref, field: certificateField(i), legacyGrants: legacyGrants,
		}
		wrong := certificateRules.firstFinding(r)
		if wrong.OK() {
			if cert := r.certificate(); !slices.Contains(c.all, cert) {
				c.all = append(c.all, cert)
			}
			c.ungranted = append(c.ungranted, r.missingGrant())
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

// certificateNames returns the names of each certificate that the listener serves. A held listener serves the
// certificates of its published config.
func (l *listener) certificateNames() (all [][]string) {
	if l.published != nil {
		for _, c := range l.published.config.AllCertificates() {
			all = append(all, c.Names())
		}
		return all
	}
	for _, c := range l.certificates {
		all = append(all, c.Names)
	}
	return all
}

func certificateField(i int) string { return fmt.Sprintf("tls.certificateRefs[%d]", i) }

// limitCertificates counts the certificates of all listeners before a config is built from them, in the order of the
// listeners. A listener whose certificates exceed the limit is not served as specified. It returns the size of the
// certificates of the other listeners in bytes, and whether all certificates are within the limit.
func limitCertificates(listeners []*listener, room Room) (used int, all bool) {
	all = true
	limit := maxCertificates
	if room.Certificates > 0 {
		limit = min(limit, room.Certificates)
	}
	for _, l := range listeners {
		size := 0
		for _, c := range l.certificates {
			size += c.Size()
		}
		if used+size > limit {
			l.certificates, all = nil, false
			l.unresolved = first(l.unresolved, condition.CertificatesOverBudget(used+size, limit))
			continue
		}
		used += size
	}
	return used, all
}

// maxCertificates is the maximum number of bytes that all certificates of a Gateway take in its config. The rest of the
// config has at least as much.
const maxCertificates = config.MaxDocument / 2

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
	certificateRef.isRead,
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
		return condition.NotGranted(condition.Field(c.field), "Secret "+c.key().String(), c.key().Namespace)
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
		return condition.CertificateSecretMissing(c.field, c.key().String())
	}
	return condition.Finding{}
}

// isRead rejects a Secret that the operator has not read. If an earlier version of the Secret was read, that version
// stays in use.
func (c certificateRef) isRead() condition.Finding {
	if reason := resource.Empty(c.view.Secret(c.key())); reason != "" {
		return condition.CertificateSecretUnread(c.field, c.key().String(), reason)
	}
	return condition.Finding{}
}

func (c certificateRef) hasKeys() condition.Finding {
	if found := c.certificate(); found.Absent {
		return condition.CertificateSecret(c.field, c.key().String(), found.Problem)
	}
	return condition.Finding{}
}

func (c certificateRef) pairMatches() condition.Finding {
	if found := c.certificate(); found.Problem != "" {
		return condition.CertificateBroken(c.field, c.key().String(), found.Problem)
	}
	return condition.Finding{}
}

func (c certificateRef) certificate() *resource.Certificate { return c.view.Certificate(c.key()) }

func (c certificateRef) key() types.NamespacedName {
	namespace := string(ptr.Deref(c.ref.Namespace, ""))
	return types.NamespacedName{Namespace: cmp.Or(namespace, c.gateway.Namespace), Name: string(c.ref.Name)}
}
