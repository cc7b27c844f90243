package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// reason matches the reason of a right in testdata/can-i.txt.
var reason = regexp.MustCompile(`(?m) {2}# (.+)$`)

// K-05: the rights of the operator, in its own namespace and elsewhere, equal a reviewed list with a reason for each
// right.
func TestRightsEqualTheReviewedList(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	got := "in its own namespace\n" + s.rights(s.owner) + "\nelsewhere\n" + s.rights("default")
	want, err := os.ReadFile("testdata/can-i.txt")
	s.must(err)
	for line := range strings.Lines(string(want)) {
		if strings.Contains(line, "[") && !reason.MatchString(line) {
			t.Errorf("testdata/can-i.txt has no reason for %s", line)
		}
	}
	if got != reason.ReplaceAllString(string(want), "") {
		t.Errorf("the rights of the operator differ from testdata/can-i.txt:\n%s", got)
	}
	for _, never := range []string{"*", "escalate", "bind", "impersonate"} {
		for line := range strings.Lines(got) {
			if slices.Contains(
				strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" []", r) }), never,
			) {
				t.Errorf("%s: %s", never, line)
			}
		}
	}
}

// K-05: the operator may write Secrets that it creates, and no others, in any namespace.
func TestRightsReachNoSecretsOfOthers(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	other := s.name + "-other"
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + other + "}}")
	s.apply(fmt.Sprintf(`
{apiVersion: v1, kind: Secret, metadata: {name: words, namespace: %[1]s}, stringData: {own: words}}
---
{apiVersion: v1, kind: Secret, metadata: {name: certificate, namespace: %[1]s}, type: kubernetes.io/tls, stringData: {tls.crt: "", tls.key: ""}}
`, other))
	as := func(ctx context.Context, command string) error {
		_, err := control.Kubectl(ctx, append(strings.Fields(command), "--as", s.user())...)
		return err
	}
	refused := func(ctx context.Context, command string) error {
		if err := as(ctx, command); err == nil ||
			!containsAny(
				err,
				"the operator writes Secrets of type stunner.l7mp.io/standby-config only|the operator writes only objects|the operator changes and deletes only objects",
			) {
			return fmt.Errorf("kubectl %s, as the operator: %v", command, err)
		}
		return nil
	}
	const change = ` -p {"data":{"more":"bW9yZQ=="}}`
	overwrite := "patch secret words -n " + other + change
	// the API server gets policies through a watch
	s.await(func(ctx context.Context) error { return refused(ctx, overwrite+" --dry-run=server") })
	s.sees("validatingadmissionpolicy/"+s.account(), ".status.observedGeneration", "1")
	if warned := s.get(
		"validatingadmissionpolicy/"+s.account(), ".status.typeChecking.expressionWarnings",
	); warned != "" {
		t.Errorf("warnings about the policy: %s", warned)
	}
	for _, command := range []string{
		overwrite, "patch secret certificate -n " + other + change, "delete secret words -n " + other,
		"delete secret certificate -n " + other,
		"create secret generic new -n " + other, "patch secret turn-credentials -n " + s.name + change,
		"delete secret turn-credentials -n " + s.name,
		"create secret generic new --type=example.net/any -n " + s.name,
	} {
		if err := refused(t.Context(), command); err != nil {
			t.Error(err)
		}
	}
	s.stop() // the operator would change the standby Secret
	s.apply("{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: new}, " +
		"spec: {gatewayClassName: none, listeners: [{name: udp, port: 3478, protocol: UDP}]}}")
	for _, command := range []string{
		"create -f " + s.file(strings.ReplaceAll(
			s.fill(objectOfNew("v1", "Secret", "new-standby", `type: stunner.l7mp.io/standby-config`)),
			`uid: "1"`, "uid: "+s.get("gateway/new", ".metadata.uid"),
		)),
		"patch secret new-standby -n " + s.name + change, "delete secret new-standby -n " + s.name,
		"create secret generic new -n " + s.name,
	} {
		if err := as(t.Context(), command); err != nil {
			t.Errorf("the operator may not do what it needs: %v", err)
		}
	}

	s.start("--discovery-auth=strict", "--credentials=drawn")
	s.sees("secret/drawn", ".type", "Opaque")
	key := s.get("secret/stunner-discovery-ca", `.data.ca\.key`)
	s.set("secret/stunner-discovery-ca", `{"data":{"ca.key":"YQ=="}}`)
	s.sees("secret/stunner-discovery-ca", `.data.ca\.key`, key)
	s.set("secret/front-door-standby", `{"data":{"stunnerd.conf.gz":"YQ=="}}`)
	s.await(func(context.Context) error {
		if now := s.get("secret/front-door-standby", `.data.stunnerd\.conf\.gz`); now == "YQ==" {
			return errors.New("the standby Secret has not been restored")
		}
		return nil
	})
	s.remove("validatingadmissionpolicybinding/"+s.account(), "validatingadmissionpolicybinding/"+s.account()+"-objects")
	s.await(func(ctx context.Context) error { return as(ctx, overwrite) }) // without the policy the write is allowed
}

// rights returns the resources, resource names and verbs that the operator may use in a namespace, without self-subject
// reviews, which every account may use.
func (s *installation) rights(namespace string) string {
	s.Helper()
	var lines []string
	for line := range strings.Lines(
		s.kubectl("auth", "can-i", "--list", "--no-headers", "--as", s.user(), "-n", namespace),
	) {
		// The columns are resources, non-resource URLs, resource names and verbs. A row with a non-resource URL has no
		// resource.
		if fields := strings.Fields(line); !strings.HasPrefix(fields[0], "[") && !strings.HasPrefix(fields[0], "self") {
			lines = append(lines, strings.ReplaceAll(strings.Join(fields, " "), s.account(), "stunner-operator")+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// K-10: the aggregated roles edit and admin may write the product's kinds except Dataplane. The role view may only
// read.
func TestRightsOfTenants(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.grantUsers()
	for _, role := range []string{"view", "edit", "admin"} {
		s.bind(role, role+"-"+s.name, s.name)
	}
	for _, c := range []struct {
		role, verb, resource string
		may                  bool
	}{
		{"view", "get", "gatewayconfigs.stunner.l7mp.io", true},
		{"view", "patch", "gatewayconfigs.stunner.l7mp.io", false},
		{"edit", "create", "udproutes.stunner.l7mp.io", true},
		{"edit", "delete", "staticservices.stunner.l7mp.io", true},
		{"edit", "patch", "gatewayconfigs.stunner.l7mp.io/status", false},
		{"edit", "get", "dataplanes.stunner.l7mp.io", false},
		{"admin", "patch", "gatewayconfigs.stunner.l7mp.io", true},
		{"admin", "create", "dataplanes.stunner.l7mp.io", false},
	} {
		s.await(func(ctx context.Context) error { // a controller aggregates the roles asynchronously
			may, err := control.May(ctx, c.role+"-"+s.name, c.verb, c.resource, s.name)
			if err == nil && may != c.may {
				err = fmt.Errorf("%s may %s %s: %t, want %t", c.role, c.verb, c.resource, may, c.may)
			}
			return err
		})
	}
}
