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
			Why:       "the service is reachable from outside: it must have no client of the API server that can do more than revoke",
		},
		{
			Package: internal + "access",
			Forbidden: []string{
				internal + "rest", internal + "gateway", "github.com/stunner-gateway/stunner/services/api/config",
				"github.com/stunner-gateway/stunner/services/api/discovery",
			},
			Why: "authentication does not depend on the requested gateways",
		},
		{
			Package: internal + "gateway",
			Forbidden: []string{
				internal + "rest", internal + "access", "github.com/go-chi/...", "github.com/golang-jwt/...",
			},
			Calls: []string{"time.Now", "time.Since"},
			Why:   "the gateways of config discovery do not depend on callers and their requests",
		},
		{
			Package:   internal + "rest",
			Forbidden: []string{internal + "demo", "github.com/getkin/kin-openapi/..."},
			Why:       "tests check the OpenAPI contract; at run time the generated code enforces it",
		},
		{
			Package:   internal + "revoke",
			Forbidden: []string{internal + "rest", internal + "access", internal + "gateway"},
			Why:       "the store of revocations does not depend on callers and their requests",
		},
		{
			Package:   internal + "usage",
			Forbidden: []string{internal + "rest", internal + "access", internal + "gateway"},
			Why:       "who may ask about which gateways is decided before an operator is asked",
		},
		{
			Package:   internal + "grantlog",
			Forbidden: []string{internal + "rest", internal + "access", internal + "gateway"},
			Calls:     []string{"time.Now", "time.Since"},
			Why:       "the log of grants gets values without passwords, and shows them to the operator only",
		},
		{
			Package:   "github.com/stunner-gateway/stunner/services/auth",
			Forbidden: []string{"google.golang.org/grpc/..."},
			Why:       "gRPC takes 4 MiB of memory in each process",
		},
		{
			Package:   internal + "tracing",
			Forbidden: []string{internal + "rest", internal + "access", internal + "gateway"},
			Why:       "how spans are sent does not depend on what they are about",
		},
		{
			Package:   internal + "demo",
			Forbidden: []string{internal + "rest", internal + "access", internal + "gateway"},
			Why:       "the test page uses the API like other clients",
		},
	})
}
