package credential_test

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// The derived secret is a contract between releases: a different value would invalidate all credentials on an update.
func TestContractDerivedSecret(t *testing.T) {
	const want = credential.Secret("sY-lLeVz8WaDVlFoWXeROQIhP1nXHZmab7tkyRdrryU")
	got, err := credential.Secret("a root that nobody knows").Derive("turn/lobby")
	if err != nil || got != want {
		t.Fatalf("derived %q, %v, want %q", string(got), err, string(want))
	}
	others := map[credential.Secret]string{got: "turn/lobby"}
	for _, name := range []string{"turn/lobby2", "turn2/lobby", "tur/nlobby", "turnl/obby", ""} {
		other, err := credential.Secret("a root that nobody knows").Derive(name)
		if err != nil || others[other] != "" {
			t.Errorf("%q has the secret of %q, %v", name, others[other], err)
		}
		others[other] = name
	}
	if len(got) < credential.StrongSecret {
		t.Errorf("%d bytes can be guessed", len(got))
	}
}
