package inspect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// everyone authorizes every caller with a credential other than "invented", by the name in the credential.
func everyone(r *http.Request, _ Attributes) (string, error) {
	name := r.Header.Get("Authorization")
	if name == "invented" {
		return "", Unauthenticated("invented token")
	}
	return name, nil
}

// askAs sends a request with a credential to an API and returns the status code.
func askAs(a *API, caller, target, source string) int {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.RemoteAddr = source
	r.Header.Set("Authorization", caller)
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Code
}

// Of 1,000 parallel requests, only a few ask pods at a time, and a few wait for a second. A caller or a namespace
// leaves room for others.
func TestParallelRequestsAreBounded(t *testing.T) {
	const shared = "127.0.0.1:1"
	addresses := func(i int) string { return fmt.Sprintf("10.0.%d.%d:1", i/250, i%250) }
	namespaces := func(i int) string { return fmt.Sprintf("n%d/door", i) }
	for name, c := range map[string]struct {
		source, caller, path func(i int) string
		most                 int64
	}{
		"one caller": {
			func(int) string { return shared }, func(int) string { return "ada" }, namespaces, maxPerCaller,
		},
		"one namespace": {addresses, addresses, func(int) string { return "media/door" }, maxPerNamespace},
		"many of both":  {addresses, addresses, namespaces, maxRequests},
	} {
		for took, answers := range map[time.Duration]int64{
			100 * time.Millisecond: (1 + queueFactor) * c.most,
			3 * time.Second:        c.most,
		} {
			synctest.Test(t, func(t *testing.T) {
				var refused, answered, asking, most atomic.Int64
				a := New(Options{Authorize: everyone, Pods: &pods{
					answers: []discovery.Answer{ok("a", `{}`)},
					wait: func() {
						most.Store(max(most.Load(), asking.Add(1)))
						time.Sleep(took)
						asking.Add(-1)
					},
				}})
				// this request makes the credential known
				askAs(a, c.caller(0), gatewaysPath+"media/door/config", c.source(0))
				var group sync.WaitGroup
				for i := range 1_000 {
					group.Go(func() {
						switch askAs(a, c.caller(i), gatewaysPath+c.path(i)+"/status", c.source(i)) {
						case http.StatusOK:
							answered.Add(1)
						case http.StatusTooManyRequests:
							refused.Add(1)
						}
					})
				}
				synctest.Wait()
				// requests of other replicas have room of their own
				path := gatewaysPath + "media/door/config?local=true"
				if code, _ := ask(a, http.MethodGet, path, "198.51.100.9:1"); code != http.StatusOK {
					t.Errorf("%s: a request of another replica: %d", name, code)
				}
				group.Wait()
				if most.Load() > c.most || answered.Load() != answers || refused.Load() != 1_000-answers {
					t.Errorf("%s, %v each: %d at a time, %d answered, %d refused, want %d at a time and %d answered", name,
						took, most.Load(), answered.Load(), refused.Load(), c.most, answers)
				}
				if len(a.unknown.keys)+len(a.callers.keys)+len(a.namespaces.keys)+len(a.requests.keys) != 0 {
					t.Errorf("%s: requests stay counted", name)
				}
			})
		}
	}
}

// Callers behind one address, such as users of kubectl port-forward, do not use up the requests of each other, even if
// the pods of a caller are slow, or if the tokens of a caller are invented and under review.
func TestCallersBehindOneAddressAreIndependent(t *testing.T) {
	const shared = "127.0.0.1:1"
	synctest.Test(t, func(t *testing.T) {
		var reviews, most atomic.Int64
		a := New(Options{
			Pods: &pods{wait: func() { time.Sleep(5 * time.Second) }},
			Authorize: func(r *http.Request, of Attributes) (string, error) {
				if name := r.Header.Get("Authorization"); strings.HasPrefix(name, "invented") {
					most.Store(max(most.Load(), reviews.Add(1)))
					defer reviews.Add(-1)
					time.Sleep(time.Minute)
					return "", Unauthenticated("invented token")
				}
				return everyone(r, of)
			},
		})
		config := gatewaysPath + "media/door/config"
		for _, caller := range []string{"ada", "bob"} {
			if code := askAs(a, caller, config, shared); code != http.StatusOK {
				t.Errorf("%s: %d", caller, code)
			}
		}
		var group sync.WaitGroup
		for i := range 100 {
			group.Go(func() { askAs(a, "ada", gatewaysPath+"media/door/status", shared) })
			group.Go(func() { askAs(a, fmt.Sprint("invented-", i), config, shared) })
		}
		synctest.Wait()
		begun := time.Now()
		if code := askAs(a, "bob", config, shared); code != http.StatusOK || time.Since(begun) > 0 {
			t.Errorf("bob: %d after %v", code, time.Since(begun))
		}
		group.Wait()
		if most.Load() != maxUnknown {
			t.Errorf("%d unknown credentials are reviewed at a time, want %d", most.Load(), maxUnknown)
		}
	})
}

// Known credentials are bounded in number and time.
func TestKnownCredentialsAreBounded(t *testing.T) {
	var c credentials
	now := time.Unix(1_000, 0)
	key := func(i int) credentialKey {
		address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return credentialKey{source: netip.PrefixFrom(address, 32)}
	}
	for i := range 3 * maxCredentials {
		c.add(key(i), now)
		if len(c.until) > maxCredentials || !c.has(key(i), now) {
			t.Fatalf("%d credentials are known", len(c.until))
		}
	}
	last := key(3*maxCredentials - 1)
	if c.has(last, now.Add(credentialTTL)) {
		t.Error("a credential does not expire")
	}
}

// The rate of requests of one address is limited before authorization, except for other replicas and for known
// credentials on this host.
func TestRequestRateIsBounded(t *testing.T) {
	for _, c := range []struct {
		source, caller string
		want           int
	}{
		{"192.0.2.1:1", "ada", sourceBurst},
		{"192.0.2.1:1", "invented", sourceBurst},
		{"[2001:db8::1]:1", "ada", sourceBurst},
		{"127.0.0.1:1", "ada", 100},
		{"[::1]:1", "ada", 100},
		{"127.0.0.1:1", "invented", sourceBurst},
		{"10.0.0.2:1", "invented", 100}, // the address of a replica
	} {
		synctest.Test(t, func(t *testing.T) {
			authorized := 0
			a := New(Options{
				Pods: &pods{}, Replicas: func() []string { return []string{"https://10.0.0.2:13478"} },
				Authorize: func(r *http.Request, of Attributes) (string, error) {
					authorized++
					return everyone(r, of)
				},
			})
			for range 100 {
				askAs(a, c.caller, gatewaysPath+"media/door/config", c.source)
			}
			if authorized != c.want {
				t.Errorf("%s %s: %d of 100 requests are authorized, want %d", c.source, c.caller, authorized, c.want)
			}
			time.Sleep(time.Second)
			if askAs(a, c.caller, gatewaysPath+"media/door/config", c.source); authorized != c.want+1 {
				t.Errorf("%s %s: no request is authorized a second later", c.source, c.caller)
			}
		})
	}
}
