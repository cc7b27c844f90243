package access

import (
	"context"
	"crypto/ecdsa"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// J-03: the keys are fetched every ten minutes, without any request. While the issuer is away for an hour the known keys stay good.
func TestKeysAreRefreshed(t *testing.T) {
	real := http.DefaultTransport
	defer func() { http.DefaultTransport = real }()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{keys: map[string]*ecdsa.PrivateKey{}}
		http.DefaultTransport = away{i}
		i.rotate(t, "first")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p, err := NewPolicy(ctx, Config{Issuer: "issuer", Audience: "audience", JWKSURL: "https://issuer.example.org/keys"}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(refreshEvery - time.Second)
		if n := i.fetches.Load(); n != 1 {
			t.Errorf("%d fetches within %s, want 1 at the start", n, refreshEvery)
		}
		time.Sleep(2 * time.Second)
		if n := i.fetches.Load(); n != 2 {
			t.Errorf("%d fetches after %s, want 2", n, refreshEvery)
		}
		i.fail(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		time.Sleep(time.Hour)
		if n := i.fetches.Load(); n < 5 {
			t.Errorf("%d fetches: the issuer is not asked again", n)
		}
		accepted(t, p, i.headers(t, "first"))
	})
}
