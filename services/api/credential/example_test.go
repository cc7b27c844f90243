package credential_test

import (
	"fmt"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// An authority with a shared secret mints ephemeral credentials, which it verifies without storing them.
func ExampleAuthority_Mint() {
	authority := credential.Authority{Realm: "example.org", SharedSecret: "a secret of at least 16 bytes"}
	now := time.Unix(1_700_000_000, 0)
	minted, err := authority.Mint("alice", time.Hour, now)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(minted.Username, minted.Password, string(minted.Password))
	verified, err := authority.Verify(minted.Username, now, 0)
	fmt.Println(verified.UserID, err)
	_, err = authority.Verify(minted.Username, now.Add(2*time.Hour), 0)
	fmt.Println(err)
	// Output:
	// 1700003600:alice <redacted> bFaGAOuHX6hYjUA1JwXou5ajV38=
	// alice <nil>
	// credential has expired
}

// Caveats are limits of a credential. They are a part of the user name, which is signed.
func ExampleAuthority_MintWith() {
	authority := credential.Authority{Realm: "example.org", SharedSecret: "a secret of at least 16 bytes"}
	now := time.Unix(1_700_000_000, 0)
	caveats := credential.Caveats{Routes: []string{"media/janus"}, Allocations: 2}
	minted, err := authority.MintWith(caveats, "alice", time.Hour, now)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(minted.Username)
	verified, err := authority.Verify(minted.Username, now, 0)
	fmt.Println(verified.UserID, verified.Caveats.Routes, verified.Caveats.Allocations, err)
	// Output:
	// 1700003600:alice:~1~Rmedia_janus~A2
	// alice [media/janus] 2 <nil>
}
