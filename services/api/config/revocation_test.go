package config_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// revoking returns a valid config with revocations.
func revoking(t *testing.T, revocations ...credential.Revocation) config.Config {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"version": "v1", "admin": map[string]any{"name": "turn/edge"}, "auth": map[string]any{
			"type": "ephemeral", "credentials": map[string]string{"secret": "a shared secret"}, "revocations": revocations,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, unknown, err := config.Parse(data)
	if err != nil || len(unknown) > 0 {
		t.Fatal(err, unknown)
	}
	return c
}

// The order and repetition of revocations have no meaning. Of several revocations of a user, the strictest one remains.
func TestRevocationsAreASet(t *testing.T) {
	a := credential.Revocation{User: "ann", IssuedBefore: 10, Until: 100}
	b := credential.Revocation{User: "bob", IssuedBefore: 20, Until: 90}
	late := credential.Revocation{User: "ann", IssuedBefore: 30, Until: 50}
	one := credential.Revocation{Credential: "100:ann", Until: 100}
	got := revoking(t, b, late, one, a)
	want := []credential.Revocation{one, {User: "ann", IssuedBefore: 30, Until: 100}, b}
	if !reflect.DeepEqual(got.Auth.Revocations, want) {
		t.Errorf("%+v, want %+v", got.Auth.Revocations, want)
	}
	if other := revoking(t, a, late, one, b, b); got.Revision() != other.Revision() {
		t.Error("the order of revocations changes the revision")
	}
	if got.Validate() != nil {
		t.Error(got.Validate())
	}
}

// Neither differences nor redacted configs contain users.
func TestRevokedUsersAreNotShown(t *testing.T) {
	c := revoking(t, credential.Revocation{User: "ann", IssuedBefore: 10, Until: 100})
	next := revoking(t, credential.Revocation{User: "bob", IssuedBefore: 10, Until: 100})
	if got := fmt.Sprint(config.Diff(c, next)); got != `[auth.revocations: "1 removed" -> "1 added"]` {
		t.Error(got)
	}
	if got := config.Diff(c, c.Clone()); len(got) != 0 {
		t.Error(got)
	}
	for _, shown := range []config.Config{c.Redacted(), c.Withheld()} {
		if strings.Contains(string(shown.Canonical()), "ann") {
			t.Errorf("%s", shown.Canonical())
		}
	}
	if c.Auth.Revocations[0].User != "ann" {
		t.Error("the redaction changed the config")
	}
}

// A user id is never expanded: users choose it.
func TestRevokedUsersAreNotExpanded(t *testing.T) {
	c := revoking(t, credential.Revocation{User: "$STUNNER_X", Until: 100})
	got, err := c.Expand(func(string) string { return "10.9.8.7" })
	if err != nil || got.Auth.Revocations[0].User != "$STUNNER_X" {
		t.Error(got.Auth.Revocations, err)
	}
}

func TestInvalidRevocations(t *testing.T) {
	long := strings.Repeat("a", 509)
	for _, c := range []struct {
		r    credential.Revocation
		want string
	}{
		{credential.Revocation{Until: 1}, "auth.revocations[0].user"},
		{credential.Revocation{User: "a", Credential: "1:a", Until: 1}, "set one of user and credential"},
		{credential.Revocation{User: long, Until: 1}, "508"},
		{credential.Revocation{Credential: long, Until: 1}, "508"},
		{credential.Revocation{User: "a"}, "auth.revocations[0].until"},
		{credential.Revocation{User: "a", Until: 1, IssuedBefore: -1}, "auth.revocations[0].issued_before"},
	} {
		if err := revoking(t, c.r).Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.r, err, c.want)
		}
	}
	many := make([]credential.Revocation, config.MaxRevocations+1)
	for i := range many {
		many[i] = credential.Revocation{User: fmt.Sprint("u", i), Until: 1}
	}
	if err := revoking(t, many...).Validate(); err == nil || !strings.Contains(err.Error(), "auth.revocations") {
		t.Error(err)
	}
	if err := revoking(t, many[1:]...).Validate(); err != nil {
		t.Error(err)
	}
}
