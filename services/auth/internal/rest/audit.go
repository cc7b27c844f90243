package rest

import (
	"context"
	"log/slog"
	"time"
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
