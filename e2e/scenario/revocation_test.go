package scenario

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
	"strconv"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// within is how soon the sessions of a revoked user have ended.
const within = 2 * time.Second

const (
	opsKey    = "the-key-of-operations"
	frontDoor = "meet/front-door"
	backDoor  = "meet/back-door"
)

// backDoorYAML is a second Gateway, with a dataplane of its own.
const backDoorYAML = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: back-door, namespace: meet}
spec:
  gatewayClassName: calls
  listeners:
    - {name: udp, port: %d, protocol: TURN-UDP}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: back-door, namespace: meet}
spec:
  parentRefs: [{name: back-door}]
  rules: [{backendRefs: [{name: echo}]}]
`

// twoGateways is the quickstart with two Gateways, and an auth service that stores revocations in the operator's
// folder.
type twoGateways struct {
	*harness.Stack
	t *testing.T
}

func newTwoGateways(t *testing.T) *twoGateways {
	s := &twoGateways{harnesstest.Quickstart(t, ""), t}
	harnesstest.NoError(t, os.Mkdir(s.folder(), 0o700))
	harnesstest.NoError(t, s.Put("backdoor.yaml", fmt.Appendf(nil, backDoorYAML, harnesstest.Port(t))))
	policy := fmt.Sprintf("version: v1\nkeys:\n- name: ops\n  hashes: [sha256:%x]\n  revoke: any\n", sha256.Sum256([]byte(opsKey)))
	harnesstest.NoError(t, os.WriteFile(s.policy(), []byte(policy), 0o600))
	s.startAuth()
	return s
}

func (s *twoGateways) folder() string { return filepath.Join(s.Input(), "revocations") }
func (s *twoGateways) policy() string { return filepath.Join(s.Dir, "policy.yaml") }

// startAuth starts the auth service in place of the running one, and waits until it returns credentials for both
// Gateways.
func (s *twoGateways) startAuth() {
	s.t.Helper()
	harnesstest.NoError(s.t, s.Auth.Stop(timeout))
	health := harnesstest.Address(s.t)
	p, err := harness.Start(harness.Command{Name: "auth", Path: filepath.Join(s.Bin, "auth"), Logs: s.Logs(),
		Args: []string{
			"--address", harness.Loopback, "--port", strconv.Itoa(s.Ports.Auth), "--health-address", health,
			"--config", s.DiscoveryURL(), "--discovery-token-file", filepath.Join(s.Output(), "discovery.token"),
			"--shutdown-delay=0", "--policy", s.policy(), "--revocations", s.folder(),
		}})
	harnesstest.NoError(s.t, err)
	s.Auth = p
	s.await(p, func(ctx context.Context) error {
		_, err := s.credential(ctx, "nobody", backDoor)
		return err
	})
}

func (s *twoGateways) await(p *harness.Process, cond func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), timeout)
	defer cancel()
	harnesstest.NoError(s.t, p.Until(ctx, cond))
}

// ask sends a request with the key of operations to the auth service.
func (s *twoGateways) ask(ctx context.Context, method, path string, body, answer any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if body == nil {
		content = nil
	}
	r, err := http.NewRequestWithContext(ctx, method, s.AuthURL()+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+opsKey)
	r.Header.Set("Content-Type", "application/json")
	code, data, err := harness.Do(r)
	if err == nil && code >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: status %d: %s", method, path, code, data)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(data, answer)
	}
	return err
}

// credential requests a credential of a user at a Gateway.
func (s *twoGateways) credential(ctx context.Context, user, gateway string) (o call.Options, err error) {
	namespace, name := filepath.Dir(gateway), filepath.Base(gateway)
	var answer struct {
		Username, Password string
		URIs               []string `json:"uris"`
	}
	path := fmt.Sprintf("/?service=turn&username=%s&namespace=%s&gateway=%s", user, namespace, name)
	if err := s.ask(ctx, http.MethodGet, path, nil, &answer); err != nil {
		return o, err
	}
	at, err := harness.ICEServer{URLs: answer.URIs}.Address(config.TURNUDP)
	return call.Options{
		Gateway: at, Network: call.UDP, Peer: s.Datagrams(), Username: answer.Username, Password: answer.Password,
	}, err
}

// dial starts a call with a credential, and waits until datagrams are echoed.
func (s *twoGateways) dial(o call.Options) *call.Call {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), timeout)
	defer cancel()
	c, err := call.Start(s.t.Context(), o)
	harnesstest.NoError(s.t, err)
	harnesstest.NoError(s.t, c.AwaitMore(ctx, 5))
	return c
}

// new returns a new credential of a user.
func (s *twoGateways) new(user, gateway string) call.Options {
	s.t.Helper()
	o, err := s.credential(s.t.Context(), user, gateway)
	harnesstest.NoError(s.t, err)
	return o
}

// revoke revokes a user, and returns the id of the revocation and when the request was sent.
func (s *twoGateways) revoke(user string) (id string, at time.Time) {
	s.t.Helper()
	at = time.Now()
	var made struct{ ID string }
	harnesstest.NoError(s.t,
		s.ask(s.t.Context(), http.MethodPost, "/v1/revocations", map[string]string{"user": user}, &made))
	return made.ID, at
}

// silent waits until calls have had no echo for half a second.
func (s *twoGateways) silent(calls ...*call.Call) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), timeout)
	defer cancel()
	harnesstest.NoError(s.t, harness.Until(ctx, func(context.Context) error {
		for _, c := range calls {
			if time.Since(c.LastEcho()) < 500*time.Millisecond {
				return errors.New("a call of a revoked user goes on")
			}
		}
		return nil
	}))
}

// refused requires that a credential opens no call.
func (s *twoGateways) refused(o call.Options) {
	s.t.Helper()
	c, err := call.Start(s.t.Context(), o)
	if err == nil {
		c.End(0)
	}
	if err := refusal(err, "error 401"); err != nil {
		s.t.Error(err)
	}
}

// admitted waits until a credential opens a call.
func (s *twoGateways) admitted(o call.Options) time.Duration {
	s.t.Helper()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(s.t.Context(), timeout)
	defer cancel()
	harnesstest.NoError(s.t, harness.Until(ctx, func(ctx context.Context) error {
		c, err := call.Start(ctx, o)
		if err == nil {
			c.End(0)
		}
		return err
	}))
	return time.Since(begun)
}

// The calls of a revoked user end at all Gateways within two seconds, and calls of others lose nothing. Credentials
// that were issued before stay refused after restarts of all programs, and new credentials are accepted at once. A
// dataplane that was not reachable gets the revocation when it is reachable again. When the revocation is deleted, the
// earlier credentials are accepted again.
func TestRevocation(t *testing.T) {
	s := newTwoGateways(t)
	old := map[string]call.Options{frontDoor: s.new("ann", frontDoor), backDoor: s.new("ann", backDoor)}
	overTCP := old[frontDoor]
	overTCP.Network = call.TCP // the listeners for UDP and TCP have one port
	anns := []*call.Call{s.dial(old[frontDoor]), s.dial(old[frontDoor]), s.dial(old[backDoor]), s.dial(overTCP)}
	bobs := []*call.Call{s.dial(s.new("bob", frontDoor)), s.dial(s.new("bob", backDoor)), s.dial(s.new("anna", frontDoor))}

	id, at := s.revoke("ann")
	s.silent(anns...)
	for i, c := range anns {
		took := c.LastEcho().Sub(at)
		t.Logf("call %d of the revoked user ended after %s", i, took.Round(time.Millisecond))
		if took > within {
			t.Errorf("call %d: %s is more than %s", i, took, within)
		}
		c.End(0)
	}
	for _, gateway := range []string{frontDoor, backDoor} {
		s.refused(old[gateway])
		fresh := s.dial(s.new("ann", gateway))
		if stats := fresh.End(timeout); stats.Lost > 0 || stats.Err != nil {
			t.Errorf("a call with a new credential: %s", stats)
		}
	}
	for i, c := range bobs {
		if stats := c.End(timeout); stats.Lost > 0 || stats.Err != nil {
			t.Errorf("call %d of another user: %s", i, stats)
		}
	}

	// The dataplanes end with the operator, and leave their sessions to the next dataplanes. Meanwhile another user is
	// revoked.
	carl, dora := s.dial(s.new("carl", frontDoor)), s.dial(s.new("dora", frontDoor))
	harnesstest.NoError(t, s.Operator.Stop(timeout))
	s.revoke("carl")
	harnesstest.NoError(t, s.StartOperator(t.Context()))
	back := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	harnesstest.NoError(t, dora.AwaitMore(ctx, 5))
	s.silent(carl)
	if took := carl.LastEcho().Sub(back); took > within {
		t.Errorf("the dataplane is back, and the call of the revoked user goes on for %s", took)
	}
	carl.End(0)
	dora.End(timeout)
	s.startAuth()
	for _, gateway := range []string{frontDoor, backDoor} {
		s.refused(old[gateway])
	}
	s.dial(s.new("ann", backDoor)).End(timeout)

	harnesstest.NoError(t, s.ask(t.Context(), http.MethodDelete, "/v1/revocations/"+id, nil, nil))
	if took := s.admitted(old[frontDoor]); took > within {
		t.Errorf("lifted after %s", took)
	}
	s.dial(old[backDoor]).End(timeout)
}

// A Revocation in a file, as GitOps writes it, has the same effect as a revocation by the auth service. Deleting the
// file ends it.
func TestRevocationAsAFile(t *testing.T) {
	s := newTwoGateways(t)
	ann, bob := s.new("ann", frontDoor), s.dial(s.new("bob", frontDoor))
	c := s.dial(ann)
	text := fmt.Sprintf(`apiVersion: stunner.l7mp.io/v1
kind: Revocation
metadata: {namespace: meet, name: leaked}
spec: {credential: %q}
`, ann.Username)
	at := time.Now()
	harnesstest.NoError(t, s.Put("leaked.yaml", []byte(text)))
	s.silent(c)
	if took := c.LastEcho().Sub(at); took > within {
		t.Errorf("ended after %s", took)
	}
	c.End(0)
	s.refused(ann)
	s.await(s.Operator, func(context.Context) error {
		data, err := os.ReadFile(filepath.Join(s.Output(), "status", "revocation", "meet_leaked.yaml"))
		if err == nil && !bytes.Contains(data, []byte("2 Gateways: meet/back-door, meet/front-door")) {
			err = fmt.Errorf("status: %s", data)
		}
		return err
	})
	harnesstest.NoError(t, os.Remove(filepath.Join(s.Input(), "leaked.yaml")))
	s.admitted(ann)
	if stats := bob.End(timeout); stats.Lost > 0 || stats.Err != nil {
		t.Errorf("call of another user: %s", stats)
	}
}
