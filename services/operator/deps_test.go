package main_test

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/deptest"
)

const internal = "github.com/stunner-gateway/stunner/services/operator/internal/"

// effects are the ways out of a function: what is pure has none of them.
var effects = []string{
	"os", "os/...", "net/http", "net/http/...", "io/ioutil",
	"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
	internal + "file/...", internal + "host/...", internal + "kube/...",
}

// clock is what a pure package must be told.
var clock = []string{"time.Now", "time.Since", "time.Until", "time.After", "metav1.Now"}

func TestDependencies(t *testing.T) {
	deptest.Check(t, []deptest.Rule{
		{
			Package: internal + "condition", Calls: clock,
			Forbidden: append([]string{internal + "resource", internal + "manifest", internal + "translate"}, effects...),
			Why:       "conditions are words: everybody uses them, they use nobody",
		},
		{
			Package: internal + "resource", Calls: clock,
			Forbidden: append([]string{internal + "condition", internal + "manifest", internal + "translate"}, effects...),
			Why:       "a view is made of objects that a provider has read; it reads nothing itself and judges nothing",
		},
		{
			Package: internal + "manifest", Calls: clock,
			Forbidden: append([]string{internal + "condition", internal + "translate"}, effects...),
			Why:       "an object follows from its facts alone, so that an unchanged Gateway never rolls its pods",
		},
		{
			Package: internal + "translate", Calls: clock,
			Forbidden: effects,
			Why:       "the same objects must mean the same thing in a cluster, in a folder and in a test",
		},
		{
			Package: internal + "share", Calls: clock,
			Forbidden: append([]string{internal + "condition", internal + "manifest", internal + "resource", internal + "translate"}, effects...),
			Why:       "who gets what is a matter of numbers, and the same for routes as for anything else",
		},
		{
			Package: internal + "trust", Calls: clock,
			Forbidden: []string{"os", "k8s.io/...", "sigs.k8s.io/...", internal + "kube/...", internal + "resource", internal + "translate"},
			Why:       "years of rotation are tested in a second, without a cluster",
		},
		{
			Package: internal + "reports",
			Forbidden: []string{
				internal + "condition", internal + "file/...", internal + "kube/...", internal + "manifest", internal + "resource", internal + "translate",
				"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
			},
			Why: "what pods say of themselves is known without a cluster to look into",
		},
		{
			Package: internal + "scaler",
			Forbidden: []string{
				internal + "condition", internal + "file/...", internal + "kube/...", internal + "manifest", internal + "resource", internal + "translate",
				"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
			},
			Why: "it answers what it is asked; what the answer is, is for the provider to know",
		},
		{
			Package:   internal + "file",
			Forbidden: []string{"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...", internal + "kube/..."},
			Why:       "the file provider is the product without a cluster",
		},
		{
			Package:   internal + "kube",
			Forbidden: []string{internal + "file/...", internal + "host/..."},
			Why:       "the providers know nothing of each other",
		},
		{
			Package: internal + "host",
			Forbidden: []string{
				internal + "condition", internal + "file/...", internal + "manifest", internal + "resource", internal + "translate",
				"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...",
			},
			Why: "a process is kept running whatever it serves",
		},
	})
}
