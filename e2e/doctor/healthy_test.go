package doctor

import (
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// healthyShapes are shapes whose healthy Gateways have no finding, with packets too.
var healthyShapes = []string{
	"folder,nat,2udp,ipv4,static",
	"folder,headless,udp+tcp,ipv6,ephemeral",
	"apiserver,hides,2pods,udp+tcp+tls+dtls,dual,static",
	"apiserver,nodeport,2pods,udp,2owners,ipv6,jwt",
}

// TestHealthy: a healthy Gateway of any shape has no finding, and each step reports what was tested.
func TestHealthy(t *testing.T) {
	t.Parallel()
	kube := startCluster(t)
	for i, shape := range healthyShapes {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			e := start(t, shape, 10+i, kube, false)
			for _, g := range e.Gateways {
				awaitHealthy(t, e, append([]string{"why", g.ID()}, authFlags(t, e)...)...)
			}
			r, _ := why(t, e, authFlags(t, e)...)
			states := map[string]string{}
			for _, s := range r.Steps {
				t.Logf("%-10s %-7s %s", s.Stage, s.State, s.Fact)
				states[s.Stage] = s.State
			}
			for _, stage := range []string{"reach", "allocation", "packets"} {
				tokens := e.Shape.Is(env.JWT) && stage != "reach" // why has no token, so it tests no credentials
				if state := states[stage]; state != "ok" && state != "noted" && !(tokens && state == "skipped") {
					t.Errorf("stage %s is %q", stage, state)
				}
			}
		})
	}
}

// authFlags returns the flags with which why gets a credential.
func authFlags(t *testing.T, e *env.Env) []string {
	t.Helper()
	if e.Shape.Is(env.Folder) || e.Shape.Is(env.JWT) {
		return nil
	}
	p, err := e.ControlPlane(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--auth-server-address", p.Auth}
}
