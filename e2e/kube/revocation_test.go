package kube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// revokeTime is how soon the dataplanes of a Gateway receive a revocation. They end the sessions at once.
const revokeTime = 2 * time.Second

// revoker is an installation with an auth service that stores revocations in the API server, with the account auth.
type revoker struct {
	*installation
	folder string
	api    string // URL of the auth service
	auth   *harness.Process
}

func newRevoker(t *testing.T) *revoker {
	t.Helper()
	s := &revoker{installation: newInstallation(t), folder: t.TempDir()}
	s.expose("192.0.2.1")
	s.accounts("auth")
	s.must(harness.Build(t.Context(), harnesstest.Root(t), s.folder, harness.Auth))
	s.write("token", s.token("auth"))
	s.write("ca.crt", string(s.access.Config.CAData))
	s.write("policy.yaml", fmt.Sprintf(
		"version: v1\nkeys:\n- name: ops\n  hashes: [sha256:%x]\n  revoke: any\n", sha256.Sum256([]byte("the-key-of-operations")),
	))
	s.startAuth()
	return s
}

func (s *revoker) write(name, text string) {
	s.Helper()
	s.must(os.WriteFile(filepath.Join(s.folder, name), []byte(text), 0o600))
}

// startAuth starts the auth service, in place of the running one.
func (s *revoker) startAuth() {
	s.Helper()
	if s.auth != nil {
		s.must(s.auth.Stop(timeout))
	}
	port, health := harnesstest.Port(s.T), harnesstest.Address(s.T)
	s.api = fmt.Sprintf("http://%s:%d", harness.Loopback, port)
	p := harnesstest.Start(s.T, harness.Command{
		Name: "auth", Path: filepath.Join(s.folder, "auth"), Logs: s.folder, Args: []string{
			"--address", harness.Loopback, "--port", fmt.Sprint(port), "--health-address", health, "--shutdown-delay=0",
			"--config", fmt.Sprintf("http://127.0.0.1:%d", s.discovery), "--policy", filepath.Join(s.folder, "policy.yaml"),
			"--revocations", s.access.Config.Host, "--revocations-token-file", filepath.Join(s.folder, "token"),
			"--revocations-ca-file", filepath.Join(s.folder, "ca.crt"),
		},
	}, harness.Answers("http://"+health+"/ready", http.StatusOK))
	s.auth = p
}

// grantRevocations gives the account of the auth service the rights of the chart, in the namespace of the test or in
// all.
func (s *revoker) grantRevocations() {
	s.Helper()
	s.apply(s.fill(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: NS-revoke},
  rules: [{apiGroups: [stunner.l7mp.io], resources: [revocations], verbs: [list, create, patch, delete]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: NS-revoke},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NS-revoke},
  subjects: [{kind: ServiceAccount, name: auth, namespace: NS}]}`))
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_, err := control.Kubectl(ctx, "delete", "clusterrole/"+s.name+"-revoke", "clusterrolebinding/"+s.name+"-revoke")
		s.must(err)
	})
}

// ask sends a request to the auth service, and returns the status and the answer.
func (s *revoker) ask(method, path, body string) (int, map[string]any) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.api+path, strings.NewReader(body))
	s.must(err)
	r.Header.Set("Authorization", "Bearer the-key-of-operations")
	r.Header.Set("Content-Type", "application/json")
	code, data, err := harness.Do(r)
	s.must(err)
	answer := map[string]any{}
	if len(bytes.TrimSpace(data)) > 0 {
		s.must(json.Unmarshal(data, &answer))
	}
	return code, answer
}

// revoked waits until exactly these users are revoked in the config of the Gateway, and returns how long it took.
func (s *revoker) revoked(users ...string) time.Duration {
	s.Helper()
	begun := time.Now()
	s.await(func(context.Context) error {
		var found []string
		for _, r := range s.config().Auth.Revocations {
			found = append(found, r.User+r.Credential)
		}
		if !slices.Equal(found, users) {
			return fmt.Errorf("revoked are %q, want %q", found, users)
		}
		return nil
	})
	return time.Since(begun)
}

// Revocations of the auth service are objects with the rights of the chart. kubectl shows and deletes them. Revocations
// that kubectl creates have the same effect. They remain after restarts of the operator and of the auth service.
func TestRevocations(t *testing.T) {
	t.Parallel()
	s := newRevoker(t)
	code, problem := s.ask(http.MethodPost, "/v1/revocations", `{"user":"ada"}`)
	if code != http.StatusNotImplemented || problem["reason"] != "revocations_denied" {
		t.Errorf("without the rights: %d %v", code, problem)
	}
	s.revoked()
	s.grantRevocations()
	var made map[string]any
	s.await(func(context.Context) error { // the authorizer of the API server reads roles from a cache
		if code, made = s.ask(http.MethodPost, "/v1/revocations", `{"user":"ada"}`); code != http.StatusCreated {
			return fmt.Errorf("%d %v", code, made)
		}
		return nil
	})
	if took := s.revoked("ada"); took > revokeTime {
		t.Errorf("in the config after %s", took)
	}
	object := fmt.Sprint("revocation/", made["id"])
	s.sees(object, condition("Accepted"), "True")
	s.says(object, "InUse", "1 Gateway: "+s.name+"/front-door")
	if shown := s.kubectl("get", "revocations", "-n", s.name); !strings.Contains(shown, "ada") || !strings.Contains(shown, "Accepted") {
		t.Errorf("kubectl shows:\n%s", shown)
	}

	leaked := credential.Revocation{Credential: fmt.Sprint(time.Now().Add(time.Hour).Unix(), ":eve:~1~A2")}
	s.apply(fmt.Sprintf("{apiVersion: stunner.l7mp.io/v1, kind: Revocation, metadata: {name: leaked}, spec: {credential: %q}}", leaked.Credential))
	s.apply("{apiVersion: stunner.l7mp.io/v1, kind: Revocation, metadata: {name: bob}, spec: {user: bob, gateways: [front-door]}}")
	s.apply("{apiVersion: stunner.l7mp.io/v1, kind: Revocation, metadata: {name: other}, spec: {user: carl, gateways: [other]}}")
	if took := s.revoked(leaked.Credential, "ada", "bob"); took > revokeTime {
		t.Errorf("in the config after %s", took)
	}
	s.says("revocation/other", "InputIgnored", "no Gateway of the namespace is named other")

	s.stop()
	s.start()
	s.revoked(leaked.Credential, "ada", "bob")
	s.startAuth()
	code, listed := s.ask(http.MethodGet, "/v1/revocations", "")
	if text := fmt.Sprint(listed); code != http.StatusOK || !strings.Contains(text, "ada") || strings.Contains(text, "bob") {
		t.Errorf("listed after a restart: %d %s", code, text)
	}
	code, answer := s.ask(http.MethodGet, "/?service=turn&username=ada&namespace="+s.name+"&gateway=front-door", "")
	if name := fmt.Sprint(answer["username"]); code != http.StatusOK || !strings.Contains(name, ":ada:~1~I") {
		t.Errorf("a new credential of a revoked user: %d %v", code, answer)
	}

	if code, answer := s.ask(http.MethodDelete, "/v1/revocations/bob", ""); code != http.StatusNotFound {
		t.Errorf("the auth service lifts a Revocation of another writer: %d %v", code, answer)
	}
	if code, answer := s.ask(http.MethodDelete, fmt.Sprint("/v1/revocations/", made["id"]), ""); code != http.StatusNoContent {
		t.Errorf("lift: %d %v", code, answer)
	}
	s.remove("revocation/bob")
	if took := s.revoked(leaked.Credential); took > revokeTime {
		t.Errorf("lifted after %s", took)
	}

	// A Gateway whose config cannot be replaced gets revocations too.
	s.remove("secret/turn-credentials")
	s.sees("gateway/front-door", condition("Accepted"), "False")
	s.apply("{apiVersion: stunner.l7mp.io/v1, kind: Revocation, metadata: {name: dora}, spec: {user: dora}}")
	if took := s.revoked(leaked.Credential, "dora"); took > revokeTime {
		t.Errorf("in the config of a held Gateway after %s", took)
	}
}

// In a namespace that is full of Revocations, the oldest Revocations stay in force, and its Gateway is served. Another
// namespace is not affected.
func TestRevocationFloodOfATenant(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.expose("192.0.2.1")
	victim := s.name + "-victim"
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + victim + "}}")
	var flood strings.Builder
	const most, more = 1000, 60
	for i := range most + more {
		fmt.Fprintf(&flood, "{apiVersion: stunner.l7mp.io/v1, kind: Revocation, metadata: {name: r%04d}, spec: {user: u%04d}}\n---\n", i, i)
	}
	s.kubectl("apply", "-n", s.name, "-f", s.file(flood.String()))
	s.await(func(context.Context) error {
		if n := len(s.config().Auth.Revocations); n != most {
			return fmt.Errorf("%d revocations in the config, want %d", n, most)
		}
		return nil
	})
	s.says(fmt.Sprintf("revocation/r%04d", most+more-1), "Accepted", "has room for 1000 Revocations")
	s.sees("gateway/front-door", condition("Accepted"), "True")
	begun := time.Now()
	s.apply("{apiVersion: stunner.l7mp.io/v1, kind: Revocation, metadata: {name: one, namespace: " + victim + "}, spec: {user: mallory}}")
	s.await(func(ctx context.Context) error {
		got, err := control.Field(ctx, victim, "revocation/one", condition("Accepted"))
		if err == nil && got != "True" {
			err = errors.New("the Revocation of another namespace has no condition Accepted")
		}
		return err
	})
	t.Logf("a Revocation of another namespace is accepted after %s", time.Since(begun).Round(time.Millisecond))
	s.remove("revocation/r0000")
	s.await(func(context.Context) error {
		for _, r := range s.config().Auth.Revocations {
			if r.User == fmt.Sprintf("u%04d", most) {
				return nil
			}
		}
		return errors.New("the room of a deleted Revocation was not given to the next one")
	})
}
