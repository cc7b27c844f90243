package harness

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/deptest"
)

func TestDependencies(t *testing.T) {
	const (
		services = "github.com/stunner-gateway/stunner/services/"
		e2e      = "github.com/stunner-gateway/stunner/e2e/"
	)
	programs := []string{services + "operator/...", services + "stunnerd/...", services + "auth/..."}
	deptest.Check(t, []deptest.Rule{
		{
			Package:   e2e + "internal/harness",
			Forbidden: append(programs, "testing", "github.com/pion/..."),
			Why:       "the programs are driven from outside, by the demo as well as by tests",
		},
		{
			Package:   e2e + "internal/call",
			Forbidden: append(programs, "testing", services+"api/...", e2e+"internal/harness"),
			Why:       "a call is made by a client that shares no code with the product",
		},
		{
			Package: e2e + "echo",
			Forbidden: append(programs, "testing", e2e+"internal/...", services+"api/config", services+"api/credential",
				services+"api/discovery", services+"api/inspection", services+"api/v1"),
			Why: "the media server of the examples works without a gateway, and has only its version in common with it",
		},
		{
			Package:   e2e + "demo",
			Forbidden: append(programs, "testing"),
			Why:       "the demo shows the programs as they are built",
		},
	})
}
