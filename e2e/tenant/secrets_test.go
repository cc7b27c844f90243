package tenant

import (
	"fmt"
	"net/http"
	"strings"
)

// ownConfig returns a GatewayConfig of the tenant and a Gateway that refers to it.
func ownConfig(spec string) string {
	return fmt.Sprintf(`
{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: own}, spec: {%s}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door}
spec:
  gatewayClassName: calls-1
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own}}
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`, spec)
}

// plain are credentials of a GatewayConfig without a Secret.
const plain = `userName: caller, password: marzipan-and-rosewater`

// gateway returns a Gateway of the class with additional fields in its spec.
func gateway(more string) string {
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door}
spec: {gatewayClassName: calls-1, listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]%s}
`, more)
}

// encrypted returns a Gateway with a TLS listener and a certificate reference.
func encrypted(ref string) string {
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door}
spec:
  gatewayClassName: calls-1
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{%s}]}}
`, ref)
}

// grant returns a ReferenceGrant for Secrets with more fields in its metadata.
func grant(more string) string {
	return `
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: mine` + more + `}
spec: {from: [{group: stunner.l7mp.io, kind: GatewayConfig, namespace: TENANT}], to: [{group: "", kind: Secret}]}
---
`
}

// ownSecret returns a Secret of the tenant.
func ownSecret(data string) string {
	return `{apiVersion: v1, kind: Secret, metadata: {name: words}, stringData: {` + data + "}}\n---\n"
}

// secretAttempts: no field of any object gives a tenant a Secret of another namespace.
func secretAttempts() (attempts []attempt) {
	const ungranted = `RefNotPermitted|ReferenceGrant`
	for name, spec := range map[string]string{
		"the password is a key of a Secret in kube-system":     `userName: caller, password: {name: cloud-admin, namespace: kube-system, key: token}`,
		"the user name is the key that signs the credentials":  `password: marzipan, userName: {name: turn, namespace: system-1, key: secret}`,
		"the shared secret is the private key of discovery":    `authType: ephemeral, sharedSecret: {name: stunner-discovery-ca, namespace: system-1, key: ca.key}`,
		"authRef names the Secret of another tenant":           `authRef: {name: turn, namespace: media-1}`,
		"authRef names the Secret of the class":                `authRef: {group: v1, kind: Secret, name: turn, namespace: system-1}`,
		"a condition reveals the type of a foreign Secret":     `authRef: {name: cloud-admin, namespace: kube-system}`,
		"an own GatewayConfig disables ReferenceGrants":        `requireReferenceGrants: false, authRef: {name: database, namespace: system-1}`,
		"an own GatewayConfig requests the key that all share": `signingKey: Shared, authRef: {name: turn, namespace: system-1}`,
	} {
		attempts = append(attempts, attempt{name: name, apply: ownConfig(spec), object: "config/own", told: ungranted})
	}
	tells := strings.NewReplacer("nokey", "token", "no-secret-here", "cloud-admin", "nowhere", "kube-system",
		"config-1", "config-0", "config-2", "config-0", "config-3", "config-0")
	var existing string
	for i, secret := range []string{
		"name: cloud-admin, namespace: kube-system, key: token", "name: cloud-admin, namespace: kube-system, key: nokey",
		"name: no-secret-here, namespace: kube-system, key: token", "name: cloud-admin, namespace: nowhere, key: token",
	} {
		existing += fmt.Sprintf("{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: config-%d}, "+
			"spec: {userName: a, password: {%s}}}\n---\n", i, secret)
	}
	return append(attempts, []attempt{
		{
			name:   "a ReferenceGrant in the tenant's namespace permits Secrets of another namespace",
			apply:  grant("") + ownConfig(`userName: caller, password: {name: turn, namespace: media-1, key: password}`),
			object: "config/own", told: ungranted,
		},
		{
			name:  "a tenant writes a ReferenceGrant into the namespace of another one",
			apply: grant(", namespace: media-1"), refused: "forbidden",
		},
		{
			name: "conditions reveal which Secrets exist in other namespaces, and their keys", apply: existing,
			try: func(n *tenant) {
				var first string
				for i := range 4 {
					text, err := n.conditions(n.Context(), fmt.Sprintf("config/config-%d", i))
					n.must(err)
					if text = tells.Replace(text); i == 0 {
						first = text
					}
					if text != first {
						n.Errorf("the conditions differ:\n%s\n%s", first, text)
					}
				}
			},
		},
		// noSecretIsExposed searches for ownWords.
		{
			name: "a condition or an event contains a value of an own Secret",
			apply: ownSecret(`type: `+ownWords+`, username: caller, password: marzipan-and-rosewater`) +
				ownConfig(`authRef: {name: words}`),
			object: "config/own", told: "InvalidCredentials",
		},
		{
			name: "the ConfigMap of a Gateway contains the user name of a Secret",
			apply: ownSecret(`type: static, username: `+ownWords+`, password: marzipan-and-rosewater`) +
				ownConfig(`authRef: {name: words}`),
			object: "config/own", told: "Accepted=True",
		},
		{
			name: "a condition contains the content of an invalid certificate",
			apply: ownSecret(strings.ReplaceAll("tls.crt: PEM, tls.key: PEM", "PEM",
				`"-----BEGIN `+ownWords+`-----\naGVsbG8=\n-----END `+ownWords+`-----\n"`)) + encrypted(`name: words`),
			object: "gateway/door", told: "InvalidCertificateRef",
		},
		{
			name:  "a TLS listener serves the certificate of another tenant",
			apply: encrypted(`name: door, namespace: media-1`), object: "gateway/door", told: "RefNotPermitted",
		},
		{
			name:  "a TLS listener serves a Secret of kube-system that is not a certificate",
			apply: encrypted(`name: cloud-admin, namespace: kube-system`), object: "gateway/door", told: "RefNotPermitted",
		},
		{
			name:  "a certificate reference names a ConfigMap",
			apply: encrypted(`kind: ConfigMap, name: kube-root-ca.crt`), object: "gateway/door", told: "InvalidCertificateRef",
		},
		{
			name: "conditions reveal which certificates exist in other namespaces",
			apply: encrypted(`name: door, namespace: media-1`) + "---\n" + strings.Replace(
				encrypted(`name: no-secret-here, namespace: media-1`), "name: door}", "name: gate}", 1),
			try: func(n *tenant) {
				for object, secret := range map[string]string{
					"gateway/door": "media-1/door", "gateway/gate": "media-1/no-secret-here",
				} {
					n.says(object, `ResolvedRefs=False RefNotPermitted: tls.certificateRefs\[0\] refers to Secret `+secret+
						` in another namespace: create a ReferenceGrant`)
				}
			},
		},
		{
			name:  "a Gateway of the class receives the key of the class's credentials",
			apply: gateway(""), object: "gateway/door", told: "Accepted=True",
			try: func(n *tenant) {
				for key, value := range n.config("door").Auth.Credentials {
					if run.before[first].Auth.Credentials[key] == value {
						n.Errorf("the %s of the tenant's Gateway is valid at that of others", key)
					}
				}
			},
		},
		{
			name:  "a credential in an own GatewayConfig is a variable reference",
			apply: ownConfig(`userName: "$PATH", password: "${PATH}$PATH"`),
			try: func(n *tenant) {
				if got := n.config("door").Auth.Credentials; got["username"] != "$PATH" || got["password"] != "${PATH}$PATH" {
					n.Errorf("the credentials are %+v", got)
				}
				n.iceServers("", `{"gateways":[{"namespace":"`+n.name+`"}]}`, http.Header{})
			},
		},
	}...)
}
