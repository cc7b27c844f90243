package access

import (
	"net/http"
	"testing"
	"time"
)

// J-03: the keys are fetched every ten minutes. While the issuer is unreachable for an hour the known keys stay valid.
func TestKeysAreRefreshed(t *testing.T) {
	withIssuer(t, func(t *testing.T, i *issuer, p *Policy) {
		time.Sleep(refreshInterval - time.Second)
		if n := i.fetches.Load(); n != 1 {
			t.Errorf("%d fetches within %s, want 1 at the start", n, refreshInterval)
		}
		time.Sleep(2 * time.Second)
		if n := i.fetches.Load(); n != 2 {
			t.Errorf("%d fetches after %s, want 2", n, refreshInterval)
		}
		i.fail(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		time.Sleep(time.Hour)
		if n := i.fetches.Load(); n < 5 {
			t.Errorf("%d fetches: the issuer is not asked again", n)
		}
		accepted(t, p, i.headers(t, "first"))
	})
}
