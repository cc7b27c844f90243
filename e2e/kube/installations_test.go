package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// writesOfOne is how often one installation may write one object while another installation has the same controller
// name.
const writesOfOne = 10

// K-05: of two installations with one controller name, the younger installation is paused and reports this. It
// continues when the older installation has ended, and is paused again when the older installation returns.
func TestOneOfTwoInstallationsIsPaused(t *testing.T) {
	t.Parallel()
	first := prepare(t, t.TempDir(), nameOf(t))
	second := first.second()
	begun := time.Now()
	both := []*contender{{first, "example.net/first:1"}, {second, "example.net/second:1"}}
	for _, c := range both {
		c.run()
		t.Cleanup(func() { _ = c.process.Kill() })
	}
	for _, c := range both {
		c.awaitReady()
		c.leads()
	}
	older, younger := both[0], both[1]
	created := func(c *contender) string {
		at, err := control.Field(t.Context(), c.owner, "lease/stunner-operator", ".metadata.creationTimestamp")
		first.must(err)
		return at
	}
	if created(younger) < created(older) { // created within the same second, so the name decides
		older, younger = younger, older
	}
	t.Logf("the older installation is %s of %s, the younger %s of %s", older.owner, created(older), younger.owner,
		created(younger))

	younger.awaitPaused(1)
	older.awaitPaused(0)
	older.serves()
	for _, name := range []string{older.owner, younger.owner} {
		first.says("gatewayclass/"+first.name, "ControllerConflict", name+"@")
	}
	first.sees("gatewayclass/"+first.name, condition("ControllerConflict"), "True")
	for _, kind := range []string{"service", "configmap"} {
		first.sees(kind+"/front-door", installationMark, older.owner)
	}
	first.sees("secret/front-door-standby", installationMark, older.owner)
	first.await(func(context.Context) error {
		events := first.kubectl("get", "events", "-A", "--field-selector",
			"reason=SecondInstallation,involvedObject.name="+first.name, "-o", "name")
		if events == "" {
			return errors.New("no event about the second installation")
		}
		return nil
	})
	if !strings.Contains(strings.Join(younger.process.Tail(2000), "\n"), "paused, because an older installation") {
		t.Error("the younger installation does not log that it is paused")
	}

	older.stop() // the older installation is restarted
	older.run()
	older.awaitReady()
	older.leads()
	older.serves()
	younger.awaitPaused(1)
	first.quiet(begun, both)

	stopped := time.Now()
	older.stop()
	younger.awaitPaused(0)
	younger.serves()
	t.Logf("the younger installation continued %s after the older one stopped", time.Since(stopped).Round(time.Second))
	older.run()
	older.awaitReady()
	older.leads()
	younger.awaitPaused(1)
	older.serves()
	first.quiet(begun, both)

	older.stop()
	// Garbage collection deletes the Lease after the operator is uninstalled.
	first.must(control.Delete(t.Context(), older.owner, "lease/stunner-operator"))
	younger.awaitPaused(0)
	younger.serves()
	first.sees("gatewayclass/"+first.name, condition("ControllerConflict"), "False")
	first.says("gatewayclass/"+first.name, "ControllerConflict", younger.owner+"@")
	first.quiet(begun, both)
}

// installationMark is the path of the annotation with the namespace of the operator that wrote an object.
const installationMark = `.metadata.annotations.stunner\.l7mp\.io/installation`

// contender is one of two installations, whose workloads differ in the image.
type contender struct {
	*installation
	image string
}

// second returns an installation in a namespace of its own, for the class of the first installation.
func (s *installation) second() *installation {
	s.Helper()
	own := *s
	own.owner, own.dir = s.owner+"-second", s.TempDir()
	s.must(os.Symlink(filepath.Join(s.dir, "operator"), filepath.Join(own.dir, "operator")))
	for _, port := range []*int{&own.discovery, &own.health, &own.scaler} {
		*port = harnesstest.Port(s.T)
	}
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + own.owner + "}}")
	var err error
	own.access, err = control.User(own.user(), "system:serviceaccounts", "system:serviceaccounts:"+own.owner)
	s.must(err)
	for _, file := range []string{"rbac.yaml", "policy.yaml"} {
		own.grant(harnesstest.Read(s.T, "kustomize/base/"+file))
	}
	own.may("create", "leases", own.owner)
	own.may("list", "gateways.gateway.networking.k8s.io", "")
	return &own
}

// run starts the operator.
func (c *contender) run() {
	c.Helper()
	c.installation.run("--watch-namespaces="+c.name, "--controller-name=stunner.l7mp.io/"+c.name, "--image="+c.image)
}

// awaitPaused waits until the metric has a value. An installation counts as gone after a minute.
func (c *contender) awaitPaused(want float64) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 2*timeout)
	defer cancel()
	c.must(harness.Until(ctx, func(context.Context) error {
		if got := c.metric("stunner_operator_paused"); got != want {
			return fmt.Errorf("stunner_operator_paused of %s is %v, want %v", c.owner, got, want)
		}
		return nil
	}))
}

// serves waits until the installation applies a change of the Gateway, with its image.
func (c *contender) serves() {
	c.Helper()
	c.processed()
	c.sees("deployment/front-door", ".spec.template.spec.containers[0].image", c.image)
	c.sees("deployment/front-door", installationMark, c.owner)
}

// quiet checks that neither installation wrote an object more often than writesOfOne since a time.
func (s *installation) quiet(since time.Time, all []*contender) {
	s.Helper()
	entries, err := control.Audit(since)
	s.must(err)
	for _, c := range all {
		counts := map[string]int{}
		for _, e := range entries {
			own := e.Namespace == c.owner && c.owner != s.name || e.Resource == "leases" || e.Resource == "events"
			if e.Write() && e.User == c.user() && !own {
				counts[strings.Join([]string{e.Resource, e.Subresource, e.Namespace, e.Name}, " ")]++
			}
		}
		for object, n := range counts {
			if n > writesOfOne {
				s.Errorf("%s wrote %s %d times", c.owner, object, n)
			}
		}
		s.Logf("writes of %s: %v", c.owner, counts)
	}
}
