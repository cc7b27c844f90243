package main

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/deptest"
)

const internal = "github.com/stunner-gateway/stunner/services/auth/internal/"

func TestDependencies(t *testing.T) {
	cluster := []string{"k8s.io/...", "sigs.k8s.io/controller-runtime/...", "sigs.k8s.io/gateway-api/..."}
	deptest.Check(t, []deptest.Rule{
		{
			Package:   "github.com/stunner-gateway/stunner/services/auth",
			Forbidden: cluster,
			Why:       "the service is reachable from outside: it knows what discovery tells it and has no way to ask Kubernetes",
		},
		{
			Package:   internal + "access",
			Forbidden: []string{internal + "rest", internal + "gateway", "github.com/stunner-gateway/stunner/services/api/..."},
			Why:       "authentication does not depend on the requested gateways",
		},
		{
			Package:   internal + "gateway",
			Forbidden: []string{internal + "rest", internal + "access", "github.com/go-chi/...", "github.com/golang-jwt/..."},
			Calls:     []string{"time.Now", "time.Since"},
			Why:       "the gateways of config discovery do not depend on callers and their requests",
		},
		{
			Package:   internal + "rest",
			Forbidden: []string{internal + "demo", "github.com/getkin/kin-openapi/..."},
			Why:       "the contract is checked in tests; at run time the generated code is the contract",
		},
		{
			Package:   internal + "demo",
			Forbidden: []string{internal + "rest", internal + "access", internal + "gateway"},
			Why:       "the test page is a client like any other",
		},
	})
}
