package main_test

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/deptest"
)

const internal = "github.com/stunner-gateway/stunner/services/operator/internal/"

// effects are the packages that a pure package must not import.
var effects = []string{
	"os", "os/...", "net/http", "net/http/...", "io/ioutil",
	"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
	internal + "file/...", internal + "host/...", internal + "kube/...",
}

// clock are the functions that a pure package must not call.
var clock = []string{"time.Now", "time.Since", "time.Until", "time.After", "metav1.Now"}

func TestDependencies(t *testing.T) {
	deptest.Check(t, []deptest.Rule{
		{
			Package: internal + "condition", Calls: clock,
			Forbidden: append(
				[]string{internal + "resource", internal + "manifest", internal + "translate"}, effects...,
			),
			Why: "conditions are types, reasons and messages, which all packages use",
		},
		{
			Package: internal + "balancer", Calls: clock,
			Forbidden: append(
				[]string{internal + "condition", internal + "manifest", internal + "resource", internal + "translate"},
				effects...,
			),
			Why: "the table of providers consists of values",
		},
		{
			Package: internal + "resource", Calls: clock,
			Forbidden: append(
				[]string{internal + "condition", internal + "decode", internal + "manifest", internal + "translate"},
				effects...,
			),
			Why: "a view consists of objects that a provider has read; it neither reads nor validates",
		},
		{
			Package: internal + "decode", Calls: clock,
			Forbidden: append(
				[]string{internal + "condition", internal + "manifest", internal + "translate"}, effects...,
			),
			Why: "the same text always decodes to the same objects and problems",
		},
		{
			Package: internal + "crd", Calls: clock,
			Forbidden: append([]string{internal + "condition", internal + "decode", internal + "manifest", internal + "resource",
				internal + "translate"}, effects...),
			Why: "the CRDs alone decide which objects are valid",
		},
		{
			Package: internal + "manifest", Calls: clock,
			Forbidden: append([]string{internal + "condition", internal + "translate"}, effects...),
			Why:       "an object depends on its inputs only, so that an unchanged Gateway never restarts its pods",
		},
		{
			Package: internal + "translate", Calls: clock,
			Forbidden: effects,
			Why:       "the same objects must mean the same thing in a cluster, in a folder and in a test",
		},
		{
			Package: internal + "lint", Calls: clock,
			Forbidden: effects,
			Why:       "a check before deployment depends on the files only",
		},
		{
			Package: internal + "share", Calls: clock,
			Forbidden: append(
				[]string{internal + "condition", internal + "manifest", internal + "resource", internal + "translate"},
				effects...,
			),
			Why: "shares are computed from numbers only, for routes and for Gateways",
		},
		{
			Package: internal + "trust", Calls: clock,
			Forbidden: []string{
				"os", "k8s.io/...", "sigs.k8s.io/...", internal + "kube/...", internal + "resource",
				internal + "translate",
			},
			Why: "tests simulate years of rotation in a second, without a cluster",
		},
		{
			Package: internal + "reports",
			Forbidden: []string{
				internal + "condition", internal + "file/...", internal + "kube/...", internal + "manifest",
				internal + "resource", internal + "translate",
				"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
			},
			Why: "reports of pods are stored without access to the API server",
		},
		{
			Package: internal + "inspect",
			Forbidden: []string{
				internal + "condition", internal + "file/...", internal + "kube/...", internal + "manifest",
				internal + "resource", internal + "translate",
				"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
			},
			Why: "the providers authorize callers",
		},
		{
			Package: internal + "scaler",
			Forbidden: []string{
				internal + "condition", internal + "file/...", internal + "kube/...", internal + "manifest",
				internal + "resource", internal + "translate",
				"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
			},
			Why: "the provider computes the answers",
		},
		{
			Package:   internal + "file",
			Forbidden: []string{"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...", internal + "kube/..."},
			Why:       "the file provider runs without a cluster",
		},
		{
			Package:   internal + "kube",
			Forbidden: []string{internal + "file/...", internal + "host/..."},
			Why:       "the providers are independent",
		},
		{
			Package: internal + "host",
			Forbidden: []string{
				internal + "condition", internal + "file/...", internal + "manifest", internal + "resource",
				internal + "translate",
				"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
			},
			Why: "supervision of a process does not depend on its config",
		},
	})
}
