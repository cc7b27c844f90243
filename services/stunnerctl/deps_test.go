package main

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/deptest"
)

func TestDependencies(t *testing.T) {
	deptest.Check(t, []deptest.Rule{
		{
			Package:   "github.com/stunner-gateway/stunner/services/stunnerctl",
			Forbidden: []string{"sigs.k8s.io/controller-runtime/..."},
			Why:       "a command reads the API server once, with the rights of its user, and needs no caches",
		},
		{
			Package:   "github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose",
			Forbidden: []string{"k8s.io/client-go/kubernetes/...", "k8s.io/client-go/dynamic/..."},
			Why:       "a diagnosis reads a snapshot, so that a fixture is text",
		},
	})
}
