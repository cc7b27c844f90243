package rest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/ratelimit"
	"github.com/stunner-gateway/stunner/services/auth/internal/grantlog"
)

// outcome is the part of the audit log line that the handlers of a request fill in.
type outcome struct {
	user    string
	granted bool     // the request was not refused; the answer may contain no credential
	grants  []grant  // the grants with a credential
	effect  *effect  // of a request that was answered and is not about credentials
	failure *failure // nil if the request was not refused
}

// effect is what a request has changed or returned: the text of its line in the audit log, and the fields of the line.
type effect struct {
	text string
	line []slog.Attr
}

// audit logs one line for each request that was refused, or that got credentials, changed revocations or read usage.
// For each reason of a refusal, maxLines lines a minute have the level of the reason, and the other lines have level
// DEBUG. The line contains the user id of the TURN user names. It does not if all credentials are static, because their
// user names may come from a Secret. Passwords are never logged, and neither is the text of a request: the names of its
// parameters may be long.
func (s server) audit(ctx context.Context, o *outcome, now time.Time) {
	switch {
	case o.failure != nil:
		suppressed, within := s.Metrics.refused(o.failure.Reason, now)
		level := o.failure.Level
		if !within {
			level = slog.LevelDebug
		}
		s.Audit.LogAttrs(ctx, level, "refused request", o.line(ctx, suppressed)...)
	case o.effect != nil:
		s.Audit.LogAttrs(ctx, slog.LevelInfo, o.effect.text, o.line(ctx, 0)...)
	case !o.granted: // a file of the test page, or a CORS preflight
	case len(o.grants) == 0:
		s.Audit.LogAttrs(ctx, slog.LevelInfo, "gave no credential", o.line(ctx, 0)...) // the gateways serve STUN only
	default:
		s.Metrics.grants.add("", now)
		s.Audit.LogAttrs(ctx, slog.LevelInfo, "gave credential", o.line(ctx, 0)...)
	}
}

func (o *outcome) line(ctx context.Context, suppressed uint64) (line []slog.Attr) {
	switch {
	case o.failure == nil && o.effect != nil:
		line = o.effect.line
	case o.failure == nil:
		line = o.credentials()
	default:
		line = []slog.Attr{
			slog.Int("status", o.failure.Status), slog.String("reason", string(o.failure.Reason)),
			slog.String("text", o.failure.logged()),
		}
	}
	if suppressed > 0 {
		line = append(line, slog.Uint64("suppressed", suppressed))
	}
	who := identityOf(ctx)
	if who.Key != "" {
		line = append(line, slog.String("key", who.Key))
	}
	if who.Subject != "" {
		line = append(line, slog.String("subject", shorten(who.Subject)))
	}
	return append(line, slog.String("source", sourceOf(ctx).String()), slog.String("request", requestOf(ctx)))
}

// maxSubject is the maximum length of a subject in logs and in the log of grants, in bytes.
const maxSubject = 256

// shorten returns a subject, or "sha256-" with its hash if it is longer than maxSubject.
func shorten(subject string) string {
	if len(subject) <= maxSubject {
		return subject
	}
	return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(subject)))
}

// credentials returns the fields of the credentials. If lifetimes differ, the fields have the expiry of the last
// credential.
func (o *outcome) credentials() (line []slog.Attr) {
	var gateways, fixed []string
	var last grant
	for _, g := range o.grants {
		id := g.gateway.ID()
		if g.gateway.Cluster != "" {
			id = g.gateway.Cluster + "/" + id
		}
		gateways = append(gateways, id)
		if g.credential.Expires.IsZero() {
			fixed = append(fixed, id)
		} else if g.credential.Expires.After(last.credential.Expires) {
			last = g
		}
	}
	if len(gateways) > 0 {
		line = append(line, slog.Any("gateways", gateways))
	}
	if len(fixed) > 0 {
		line = append(line, slog.Any("fixed", fixed))
	}
	if expires := last.credential.Expires; !expires.IsZero() {
		line = append(line, slog.String("user", o.user), slog.String("expires", expires.UTC().Format(time.RFC3339)),
			slog.Int64("ttl", int64(last.ttl/time.Second)))
	}
	return line
}

// record adds the credentials of an answer to the outcome of the request and to the log of grants. The log of grants
// has one entry for each user name, because several gateways may share it. It omits the user name of a fixed
// credential, which may come from a Secret.
func (s server) record(ctx context.Context, user string, grants []grant) {
	o := &callOf(ctx).outcome
	o.user, o.granted = user, true
	o.grants = slices.DeleteFunc(slices.Clone(grants), func(g grant) bool { return g.stunOnly })
	grantLogs := fleetOf(ctx).GrantLogs
	if len(grantLogs) == 0 {
		return
	}
	who, from := identityOf(ctx), sourceOf(ctx)
	origin := who.Caller
	if !who.Known {
		origin = ratelimit.SourcePrefix(from.addr).String()
	}
	type key struct{ cluster, name string }
	entries := map[key]*grantlog.Entry{}
	var order []key
	for _, g := range grants {
		if g.stunOnly {
			continue
		}
		name, expires := g.credential.Username, g.credential.Expires
		if expires.IsZero() {
			name = ""
		}
		at := key{g.gateway.Cluster, name}
		e := entries[at]
		if e == nil {
			e = &grantlog.Entry{
				Time: s.Now(), User: user, Username: name, Expires: expires, Source: from.String(), Origin: origin,
			}
			e.Caller = cmp.Or(who.Key, shorten(who.Subject))
			entries[at], order = e, append(order, at)
		}
		e.Gateways = append(e.Gateways, g.gateway.ID())
	}
	for _, at := range order {
		if t := grantLogs[at.cluster]; t != nil {
			t.Add(*entries[at])
		}
	}
}
