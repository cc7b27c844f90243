package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// A Gateway of the existing system, whose Service exposes a listener that this operator cannot serve, is not published
// and its objects stay. With legacyGrants, it is published with all of its listeners.
func TestMigration_TakesNoListenerAway(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.stop()
	keys := s.name + "-keys"
	chain, private, err := bed.Certificate()
	s.must(err)
	s.must(os.WriteFile(filepath.Join(s.dir, "tls.crt"), chain, 0o600))
	s.must(os.WriteFile(filepath.Join(s.dir, "tls.key"), private, 0o600))
	s.kubectl("create", "namespace", keys)
	s.kubectl("create", "secret", "tls", "door", "-n", keys, "--cert", filepath.Join(s.dir, "tls.crt"), "--key",
		filepath.Join(s.dir, "tls.key"))
	s.apply(strings.NewReplacer("NAME", s.name).Replace(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: NAME, name: hall}
spec:
  gatewayClassName: NAME
  listeners:
  - {name: udp, port: 3478, protocol: UDP}
  - {name: tls, port: 5349, protocol: TLS, tls: {certificateRefs: [{namespace: NAME-keys, name: door}]}}
`))
	s.apply(strings.NewReplacer("NAME", s.name, "UID", s.get("gateway/hall", ".metadata.uid")).Replace(`
apiVersion: v1
kind: Service
metadata:
  namespace: NAME
  name: hall
  labels:
    stunner.l7mp.io/owned-by: stunner
    stunner.l7mp.io/related-gateway-name: hall
    stunner.l7mp.io/related-gateway-namespace: NAME
  annotations: {stunner.l7mp.io/related-gateway-name: NAME/hall}
  ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: hall, uid: UID, controller: true}]
spec:
  type: LoadBalancer
  selector: {app: stunner, stunner.l7mp.io/related-gateway-name: hall, stunner.l7mp.io/related-gateway-namespace: NAME}
  ports:
  - {name: udp, port: 3478, protocol: UDP}
  - {name: tls, port: 5349, protocol: TCP}
`))
	hall := func() (c config.Config) {
		body, code := s.read(fmt.Sprintf("http://127.0.0.1:%d/api/v1/configs/%s/hall", s.discovery, s.name))
		if code == http.StatusOK {
			s.must(json.Unmarshal(body, &c))
		}
		return c
	}
	const uid, version = ".metadata.uid", ".metadata.resourceVersion"
	made, before := s.get("service/hall", uid), s.get("service/hall", version)
	s.start()
	s.sees("gateway/hall", condition("Accepted"), "False")
	s.sees("gateway/hall", `.status.conditions[?(@.type=="Accepted")].reason`, "ListenersNotValid")
	if c, now := hall(), s.get("service/hall", version); c.Admin.Name != "" || now != before {
		t.Errorf("published %d listeners; Service in version %s, was %s", len(c.Listeners), now, before)
	}
	s.kubectl("patch", "gatewayconfig", s.name, "-n", s.name, "--type=merge", "-p", `{"spec":{"legacyGrants":true}}`)
	s.await(func(context.Context) error {
		if c := hall(); len(c.Listeners) != 2 || c.Listeners[1].Protocol != config.TURNTLS {
			return fmt.Errorf("listeners %+v", c.Listeners)
		}
		return nil
	})
	s.sees("gateway/hall", condition("Accepted"), "True")
	s.sees("service/hall", `.metadata.labels.gateway\.networking\.k8s\.io/gateway-name`, "hall")
	if now := s.get("service/hall", uid); now != made {
		t.Error("the Service was re-created")
	}
	s.sees("gateway/hall",
		`.status.listeners[?(@.name=="tls")].conditions[?(@.type=="DeprecatedInput")].status`, "True")
	// The Gateway is published now: without legacyGrants, the certificate goes out of use.
	s.kubectl("patch", "gatewayconfig", s.name, "-n", s.name, "--type=merge", "-p", `{"spec":{"legacyGrants":false}}`)
	s.await(func(context.Context) error {
		if c := hall(); len(c.Listeners) != 1 {
			return fmt.Errorf("listeners %+v", c.Listeners)
		}
		return nil
	})
}
