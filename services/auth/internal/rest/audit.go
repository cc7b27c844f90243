package rest

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"time"
)

// audit says who was given what, with one line for each credential. The user is that of the TURN user name, by which a credential is found again. A
// gateway with fixed credentials gives the same to everybody, and their user name may come from a Secret: it is left out. No password is in a line.
func (s server) audit(ctx context.Context, user string, grants []grant) {
	who := identityOf(ctx)
	for _, g := range grants {
		if g.stunOnly {
			continue
		}
		line := []slog.Attr{slog.String("gateway", g.gateway.ID())}
		if who.Known {
			line = append(line, slog.String("subject", who.Subject))
		}
		if expires := g.credential.Expires; expires.IsZero() {
			line = append(line, slog.Bool("fixed", true))
		} else {
			line = append(line, slog.String("user", user), slog.String("expires", expires.UTC().Format(time.RFC3339)), slog.Int64("ttl", int64(g.ttl/time.Second)))
		}
		line = append(line, slog.String("source", sourceOf(ctx).String()), slog.String("request", requestOf(ctx)))
		s.Audit.LogAttrs(ctx, slog.LevelInfo, "gave credential", line...)
	}
}

// requestIDHeader is the header in which a request id comes from a proxy, and goes to the client.
const requestIDHeader = "X-Request-Id"

var requestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

type requestKey struct{}

func requestOf(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// number gives each request an id, by which an answer is found in the log: that of a trusted proxy, or else a new one.
func (s server) number(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDHeader)
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !holds(s.Rates.Proxies, peer.Addr().Unmap()) || !requestID.MatchString(id) {
			id = rand.Text()
		}
		w.Header().Set(requestIDHeader, id)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, id)))
	})
}
