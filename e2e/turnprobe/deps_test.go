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
			Why:       "the prober is for any TURN server",
		},
		{
			Package:   prober + "/internal/probe",
			Forbidden: append(codecs, product, "testing"),
			Why:       "a judge shares no code with whom he judges",
		},
		{
			Package:   prober + "/internal/wire",
			Forbidden: append(codecs, product, "testing", "net/http"),
			Why:       "the bytes are read from the RFCs alone, and must be able to be wrong",
		},
	})
}
