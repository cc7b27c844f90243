package probe

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

// Servers limit failed authentications per source address, so each sample uses a new source.
const (
	places  = 60
	guesses = 4 // number of guesses per kind and source
)

// enumeration compares the response times for an existing and an unknown user, because a difference allows user
// enumeration.
func enumeration(t *Trial) {
	t.onLoopback4(t.Server.Addr())
	user := t.Target.login(t.name()).user
	users := []string{user, strings.Repeat("x", len(user))}
	times := make([][]time.Duration, len(users))
	for place := range byte(places) {
		c := t.clientFrom(&source{addr: netip.AddrFrom4([4]byte{127, 63, 0, place + 1})})
		c.challenge()
		for range guesses {
			for i, name := range users {
				c.login = login{name, "guessed"}
				request := c.sign(req(wire.Allocate, t.plain()...))
				started := time.Now()
				a := c.answer(request)
				times[i] = append(times[i], time.Since(started))
				a.Refused(401)
			}
		}
	}
	known, unknown := median(times[0]), median(times[1])
	if fast, slow := min(known, unknown), max(known, unknown); slow > fast+fast/4 {
		t.Failf("median of a wrong password %s, of an unknown user %s: more than 25 %% apart", known, unknown)
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
