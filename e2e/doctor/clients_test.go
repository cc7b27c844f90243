package doctor

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// several is the number of clients that a fault affects. If fewer are affected, the client is likely the cause.
const several = 4

// faultsOfClients are faults that appear only in the calls of clients. The Gateway reports them for some minutes, so
// they are the last faults of an installation. Faults that need calls in progress come before faults that make other
// calls fail.
func faultsOfClients(p *installation) (faults []fault) {
	e, g := p.Env, p.Gateways[0]
	gateway, route := "Gateway "+g.ID(), "UDPRoute "+g.ID()+"-first"
	doctor := []string{"doctor"}
	if p.Shape.Is(env.APIServer) {
		doctor = append(doctor, "-n", g.Namespace)
	}
	udp := g.Listeners[0]
	peer := udp.Peers()[0]
	add := func(f fault) { f.lasts = true; faults = append(faults, f) }

	silence, sound := rules(e.Net.Peers, fmt.Sprintf(
		"chain faulty { type filter hook output priority filter;\n%s saddr %s udp sport %d drop\n}", family(peer), peer.Addr(), peer.Port()))
	var calls env.Calls
	add(fault{name: "the answers of the media server are lost during calls", command: doctor, severity: "warning", object: route,
		field: "backendRefs", problem: fmt.Sprintf("%d of %d calls send and get nothing back from %s-first", several, several, g.ID()),
		remedy: "media server",
		make: func(t *testing.T) {
			for i := range several {
				c, err := e.Dial(t.Context(), udp, udp.Addresses()[0], peer, fmt.Sprintf("silent%d", i))
				must(t, err)
				calls = append(calls, c)
			}
			must(t, calls.AwaitEchoes(t.Context()))
			silence(t)
		},
		undo: func(t *testing.T) { sound(t); calls.HangUp() },
	})

	denied := udp.ForeignPeers()[0]
	add(fault{name: "no route names the peer of calls", command: doctor, severity: "warning", object: route, field: "backendRefs",
		problem: fmt.Sprintf("%s was denied to %d calls, of which %d got no media", denied, several, several), remedy: "add the peer to a UDPRoute",
		make: func(t *testing.T) {
			for range several {
				if err := udp.TryPeer(t.Context(), denied); !errors.Is(err, env.ErrForbidden) {
					t.Fatal(err)
				}
			}
		},
		undo: func(*testing.T) {},
	})

	// refused makes clients call with a credential that the Gateway refuses.
	refused := func(mint func(user string) (credential.Credential, error)) func(*testing.T) {
		return func(t *testing.T) {
			for i := range several {
				c, err := mint(fmt.Sprintf("refused%d", i))
				must(t, err)
				made, err := e.DialAs(t.Context(), udp, udp.Addresses()[0], peer, c.Username, string(c.Password))
				if err == nil {
					made.End(0)
				}
				if !errors.Is(err, call.ErrRefused) {
					t.Fatal(err)
				}
			}
		}
	}
	expired := func(user string) (credential.Credential, error) {
		username, password, err := g.CredentialAt(user, time.Now().Add(-2*time.Hour))
		return credential.Credential{Username: username, Password: credential.Secret(password)}, err
	}
	add(fault{name: "apps use expired credentials", command: doctor, severity: "warning", object: gateway, field: "credential",
		problem: "expired_credential", remedy: "clock", make: refused(expired), undo: func(*testing.T) {}})
	other := credential.Authority{SharedSecret: "the secret of another installation"}
	foreign := func(user string) (credential.Credential, error) { return other.Mint(user, time.Hour, time.Now()) }
	add(fault{name: "apps sign with another secret", command: doctor, severity: "warning",
		object: "GatewayConfig " + e.System() + "/turn", field: "spec.authRef", problem: "wrong_password", remedy: "same shared secret",
		make: refused(foreign), undo: func(*testing.T) {}})
	return faults
}
