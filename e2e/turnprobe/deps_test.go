package main

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/deptest"
)

func TestDependencies(t *testing.T) {
	const (
		product = "github.com/stunner-gateway/stunner/services/..."
		prober  = "github.com/stunner-gateway/stunner/e2e/turnprobe"
	)
	codecs := []string{"github.com/pion/stun/...", "github.com/pion/turn/..."}
	deptest.Check(t, []deptest.Rule{
		{
			Package:   prober,
			Forbidden: append(codecs, product, "testing"),
			Why:       "the prober works with any TURN server",
		},
		{
			Package:   prober + "/internal/probe",
			Forbidden: append(codecs, product, "testing"),
			Why:       "the prober shares no code with the server that it tests",
		},
		{
			Package:   prober + "/internal/wire",
			Forbidden: append(codecs, product, "testing", "net/http"),
			Why:       "the codec follows the RFCs only, and must be able to encode invalid messages",
		},
	})
}
