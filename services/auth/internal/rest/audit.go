package rest

import (
	"context"
	"log/slog"
	"time"

	"github.com/stunner-gateway/stunner/services/api/ratelimit"
	"github.com/stunner-gateway/stunner/services/auth/internal/trail"
)

// audit logs one line for each credential of an answer. The line contains the user id of the TURN user name, except for
// fixed credentials, because their user name may come from a Secret. Passwords are never logged.
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
			line = append(line, slog.String("user", user), slog.String("expires", expires.UTC().Format(time.RFC3339)),
				slog.Int64("ttl", int64(g.ttl/time.Second)))
		}
		line = append(line, slog.String("source", sourceOf(ctx).String()), slog.String("request", requestOf(ctx)))
		s.Audit.LogAttrs(ctx, slog.LevelInfo, "gave credential", line...)
	}
}

// record adds the credentials of an answer to the trail: one entry for each user name, because several gateways may share
// one. The user name of a fixed credential may come from a Secret, so it is left out.
func (s server) record(ctx context.Context, user string, grants []grant) {
	if s.Trail == nil {
		return
	}
	who, from := identityOf(ctx), sourceOf(ctx)
	origin := "subject " + who.Subject
	if !who.Known {
		origin = ratelimit.SourcePrefix(from.addr).String()
	}
	entries := map[string]*trail.Entry{}
	var order []string
	for _, g := range grants {
		if g.stunOnly {
			continue
		}
		name, expires := g.credential.Username, g.credential.Expires
		if expires.IsZero() {
			name = ""
		}
		e := entries[name]
		if e == nil {
			e = &trail.Entry{
				Time: s.Now(), User: user, Username: name, Expires: expires, Source: from.String(), Origin: origin,
			}
			if who.Known {
				e.Caller = who.Subject
			}
			entries[name], order = e, append(order, name)
		}
		e.Gateways = append(e.Gateways, g.gateway.ID())
	}
	for _, name := range order {
		s.Trail.Add(*entries[name])
	}
}
