package tenant

import (
	"bytes"
	"fmt"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownConfig returns a GatewayConfig of the tenant and a Gateway that refers to it.
func ownConfig(spec string) string {
	return fmt.Sprintf(`
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: own}
spec: {%s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door}
spec:
  gatewayClassName: stunner
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
spec: {gatewayClassName: stunner, listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]%s}
`, more)
}

// encrypted returns a Gateway with a TLS listener and a certificate reference.
func encrypted(ref string) string {
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door}
spec:
  gatewayClassName: stunner
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{%s}]}}
`, ref)
}

const ungranted = `RefNotPermitted|ReferenceGrant`

// secretAttempts: no field of any object gives a tenant a Secret of another namespace.
func secretAttempts() []attempt {
	return []attempt{
		{
			name:  "the password of an own GatewayConfig is a key of a Secret in kube-system",
			apply: ownConfig(`userName: caller, password: {name: cloud-admin, namespace: kube-system, key: token}`),
			told:  map[string]string{"config/own": ungranted},
		},
		{
			name: "the user name of an own GatewayConfig is the key that signs the credentials of the class",
			apply: ownConfig(
				`password: marzipan-and-rosewater, userName: {name: stunner-turn-credentials, namespace: stunner-system, key: secret}`,
			),
			told: map[string]string{"config/own": ungranted},
			try:  func(n *tenant) { n.lacks(classSecret) },
		},
		{
			name: "the shared secret of an own GatewayConfig is the private key of config discovery",
			apply: ownConfig(
				`authType: ephemeral, sharedSecret: {name: stunner-discovery-ca, namespace: stunner-system, key: ca.key}`,
			),
			told: map[string]string{"config/own": ungranted},
		},
		{
			name:  "authRef of an own GatewayConfig names the Secret of another tenant",
			apply: ownConfig(`authRef: {name: turn, namespace: victim}`),
			told:  map[string]string{"config/own": ungranted},
		},
		{
			name: "authRef of an own GatewayConfig names the Secret of the class",
			apply: ownConfig(
				`authRef: {group: v1, kind: Secret, name: stunner-turn-credentials, namespace: stunner-system}`,
			),
			told: map[string]string{"config/own": ungranted},
			try:  func(n *tenant) { n.lacks(classSecret) },
		},
		{
			name:  "an own GatewayConfig disables ReferenceGrants for a Secret",
			apply: ownConfig(`requireReferenceGrants: false, authRef: {name: database, namespace: stunner-system}`),
			told:  map[string]string{"config/own": ungranted},
		},
		{
			name: "a ReferenceGrant in the tenant's namespace permits Secrets of another namespace",
			apply: `
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: mine}
spec: {from: [{group: stunner.l7mp.io, kind: GatewayConfig, namespace: TENANT}], to: [{group: "", kind: Secret}]}
---
` + ownConfig(`userName: caller, password: {name: turn, namespace: victim, key: password}`),
			told: map[string]string{"config/own": ungranted},
		},
		{
			name: "a tenant writes a ReferenceGrant into the namespace of another one",
			apply: `
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: mine, namespace: victim}
spec: {from: [{group: stunner.l7mp.io, kind: GatewayConfig, namespace: TENANT}], to: [{group: "", kind: Secret}]}
`,
			refused: "forbidden",
		},
		{
			name:  "a condition reveals the type of a foreign Secret",
			apply: ownConfig(`authRef: {name: cloud-admin, namespace: kube-system}`),
			told:  map[string]string{"config/own": ungranted},
		},
		{
			name: "conditions reveal which Secrets exist in other namespaces, and their keys",
			apply: `
{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: there}, spec: {userName: a, password: {name: cloud-admin, namespace: kube-system, key: token}}}
---
{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: no-key}, spec: {userName: a, password: {name: cloud-admin, namespace: kube-system, key: nokey}}}
---
{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: nowhere}, spec: {userName: a, password: {name: no-secret-here, namespace: kube-system, key: token}}}
---
{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: far-away}, spec: {userName: a, password: {name: cloud-admin, namespace: no-such-namespace, key: token}}}
`,
			try: func(n *tenant) {
				var first string
				for _, name := range []string{"there", "no-key", "nowhere", "far-away"} {
					text, err := n.says(n.Context(), "config/"+name)
					n.must(err)
					text = strings.NewReplacer(
						name, "NAME", "no-secret-here", "SECRET", "cloud-admin", "SECRET", "no-such-namespace",
						"kube-system", "nokey", "token",
					).Replace(text)
					if first == "" {
						first = text
					}
					if text != first {
						n.Errorf("the conditions differ:\n%s\n%s", first, text)
					}
				}
			},
		},
		{
			name: "a condition or an event contains a value of an own Secret",
			apply: `
{apiVersion: v1, kind: Secret, metadata: {name: words}, stringData: {type: own-words-of-TENANT, username: caller, password: marzipan-and-rosewater}}
---
` + ownConfig(`authRef: {name: words}`),
			told: map[string]string{"config/own": "InvalidCredentials"},
			try:  func(n *tenant) { n.isNotExposed("own-words-of-" + n.name) },
		},
		{
			name: "the ConfigMap of a Gateway contains the user name of a Secret",
			apply: `
{apiVersion: v1, kind: Secret, metadata: {name: words}, stringData: {type: static, username: own-words-of-TENANT, password: marzipan-and-rosewater}}
---
` + ownConfig(`authRef: {name: words}`),
			told: map[string]string{"config/own": "Accepted=True"},
			try:  func(n *tenant) { n.isNotExposed("own-words-of-" + n.name) },
		},
		{
			name: "a condition contains the content of an invalid certificate",
			apply: `
{apiVersion: v1, kind: Secret, metadata: {name: words}, stringData: {tls.crt: "-----BEGIN OWN WORDS OF TENANT-----\naGVsbG8=\n-----END OWN WORDS OF TENANT-----\n", tls.key: "-----BEGIN OWN WORDS OF TENANT-----\naGVsbG8=\n-----END OWN WORDS OF TENANT-----\n"}}
---
` + encrypted(`name: words`),
			told: map[string]string{"gateway/door": "InvalidCertificateRef"},
			try:  func(n *tenant) { n.isNotExposed("OWN WORDS OF") },
		},
		{
			name:  "a TLS listener serves the certificate of another tenant",
			apply: encrypted(`name: door, namespace: victim`),
			told:  map[string]string{"gateway/door": "RefNotPermitted"},
		},
		{
			name:  "a TLS listener serves a Secret of kube-system that is not a certificate",
			apply: encrypted(`name: cloud-admin, namespace: kube-system`),
			told:  map[string]string{"gateway/door": "RefNotPermitted"},
		},
		{
			name:  "a certificate reference names a ConfigMap",
			apply: encrypted(`kind: ConfigMap, name: kube-root-ca.crt`),
			told:  map[string]string{"gateway/door": "InvalidCertificateRef"},
		},
		{
			name: "conditions reveal which certificates exist in other namespaces",
			apply: encrypted(`name: door, namespace: victim`) + "---\n" + strings.NewReplacer(
				"name: door}", "name: gate}", "name: door,", "name: no-secret-here,",
			).
				Replace(encrypted(`name: door, namespace: victim`)),
			try: func(n *tenant) {
				for object, secret := range map[string]string{
					"gateway/door": "victim/door", "gateway/gate": "victim/no-secret-here",
				} {
					n.told(
						object,
						`ResolvedRefs=False RefNotPermitted: tls.certificateRefs\[0\] refers to Secret `+secret+` in another namespace: create a ReferenceGrant`,
					)
				}
			},
		},
		{
			name:  "a Gateway of the class receives the key of the class's credentials",
			apply: gateway(""),
			told:  map[string]string{"gateway/door": "Accepted=True"},
			try: func(n *tenant) {
				n.lacks(classSecret)
				for key, value := range n.config("door").Auth.Credentials {
					if house.victim.doors["victim/front-door"].before.Auth.Credentials[key] == value {
						n.Errorf("the %s of the tenant's Gateway is valid at the victim's", key)
					}
				}
			},
		},
		{
			name: "an own GatewayConfig requests the key that all Gateways share",
			apply: ownConfig(
				`signingKey: Shared, authRef: {name: stunner-turn-credentials, namespace: stunner-system}`,
			),
			try: func(n *tenant) { n.lacks(classSecret) },
		},
		{
			name: "a credential in an own GatewayConfig contains a variable reference to the auth service's environment",
			apply: ownConfig(
				`userName: "$MARKER", password: "${MARKER}$MARKER"`,
			) + "  addresses: [{type: Hostname, value: marker.example.net}]\n",
			try: func(n *tenant) {
				n.finds("answer of the auth service", n.iceServers(`{"gateways":[{"namespace":"`+n.name+`"}]}`))
			},
		},
	}
}

// lacks checks that the tenant finds a secret nowhere.
func (n *tenant) lacks(secret string) {
	n.Helper()
	all, err := readable()
	n.must(err)
	for _, gvk := range all {
		n.eachOf(gvk, func(where string, text []byte) {
			for _, found := range house.markers.in(text) {
				if found == secret {
					n.Errorf("%s holds: %s", where, secret)
				}
			}
		})
	}
}

// isNotExposed checks that a text of a Secret is in no other object and in no event.
func (n *tenant) isNotExposed(words string) {
	n.Helper()
	all, err := readable()
	n.must(err)
	for _, gvk := range all {
		if gvk.Kind == "Secret" {
			continue
		}
		n.eachOf(gvk, func(where string, text []byte) {
			if bytes.Contains(text, []byte(words)) {
				n.Errorf("%s holds: %s", where, words)
			}
		})
	}
	events := &eventsv1.EventList{}
	n.must(house.List(n.Context(), events, client.InNamespace(n.name)))
	for _, e := range events.Items {
		if strings.Contains(e.Note, words) {
			n.Errorf("event %s %s: %s", e.Reason, e.Regarding.Name, e.Note)
		}
	}
}
