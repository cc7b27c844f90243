package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/usage"
)

// maxUsageGateways is the maximum number of gateways of a request for usage, each of which is a request to an operator.
const maxUsageGateways = 16

// GetUsage answers GET /v1/usage.
func (s server) GetUsage(ctx context.Context, r GetUsageRequestObject) (GetUsageResponseObject, error) {
	who := identityOf(ctx)
	if who.Grant.Usage == access.Nobody {
		return nil, fail(usageNotAllowed)
	}
	q, err := s.usageQuery(who, r.Params)
	if err != nil {
		return nil, err
	}
	found, err := s.usageGateways(ctx, who, r.Params)
	if err != nil {
		return nil, err
	}
	asked, err := operatorsOf(ctx, found)
	if err != nil {
		return nil, err
	}
	answer, err := s.usage.Ask(ctx, who.Caller, asked, q)
	switch {
	case err == nil:
	case errors.Is(err, usage.ErrDenied) && !errors.Is(err, usage.ErrAway):
		s.Log.Warn("usage is not available", "error", err, "request", requestOf(ctx))
		return nil, fail(usageDenied)
	default:
		s.Log.Warn("usage is not available", "error", err, "request", requestOf(ctx))
		return nil, fail(usageUnavailable)
	}
	noteUsage(ctx, q, asked, answer)
	return GetUsage200JSONResponse(usageAnswer(q, answer, s.Now())), nil
}

// usageQuery returns the request to pods for the parameters of a request.
func (s server) usageQuery(who *access.Identity, p GetUsageParams) (q inspection.UsageQuery, err error) {
	now := s.Now()
	q = inspection.UsageQuery{
		From: now.Add(-inspection.UsageSpan), To: now, By: inspection.UsageByUser, Limit: inspection.DefaultLimit,
	}
	if p.From != nil {
		q.From = *p.From
	}
	if p.To != nil {
		q.To = *p.To
	}
	switch {
	case now.Sub(q.From) > inspection.UsageSpan+clockLeeway:
		return q, bad("from", "must be at most an hour ago: usage records have what was before")
	case q.From.After(now.Add(clockLeeway)):
		return q, bad("from", "must not be in the future")
	case !q.From.Before(q.To):
		return q, bad("to", "must be after from")
	case q.To.After(now):
		q.To = now
	}
	if p.By != nil {
		if !p.By.Valid() {
			return q, bad("by", "must be user, gateway or route")
		}
		q.By = usage.By(*p.By)
	}
	if p.Limit != nil {
		if q.Limit = *p.Limit; q.Limit < 1 || q.Limit > inspection.MaxLimit {
			return q, bad("limit", notLimit)
		}
	}
	q.User, err = usageUser(who, p.User)
	return q, err
}

const notLimit = "must be an integer from 1 to 1000"

// usageUser returns the user id that a request selects; empty means all users. If a caller may read only its own usage,
// and the policy determines its user id, the caller need not name it.
func usageUser(who *access.Identity, user *string) (string, error) {
	if user == nil {
		switch {
		case who.Grant.Usage == access.Anybody:
			return "", nil
		case !who.Chooses():
			return who.UserID, nil
		}
		return "", refuse(parameterMissing, "user", "is missing: the caller may read the usage of its own user ids only")
	}
	switch {
	case len(*user) < 1 || len(*user) > maxRevoked:
		return "", bad("user", "must have 1 to %d bytes", maxRevoked)
	case !who.MayReadUsage(*user):
		return "", refuse(usageNotAllowed, "user", "is not one whose usage the caller may read")
	}
	return *user, nil
}

// usageGateways returns the gateways of all clusters that a request selects and the caller may use.
func (s server) usageGateways(ctx context.Context, who *access.Identity, p GetUsageParams) ([]*gateway.Gateway, error) {
	if err := checkFilter(p.Namespace, p.Gateway, nil); err != nil {
		return nil, err
	}
	filter := gateway.Filter{Namespace: deref(p.Namespace), Name: deref(p.Gateway)}
	parameter := "namespace"
	if p.Gateway != nil {
		parameter = "gateway"
	}
	switch {
	case p.Namespace != nil:
		if err := s.permits(who, filter, parameter); err != nil {
			return nil, err
		}
	case who.Gateways.Empty():
		return nil, fail(claimEmpty)
	}
	keep := keepAllowed(s.Gateways, who.Grant.Gateways, who.Gateways)
	var found []*gateway.Gateway
	for _, c := range fleetOf(ctx).All {
		found = append(found, keep(c.Directory.Select(filter))...)
	}
	switch {
	case len(found) == 0 && p.Namespace != nil:
		return nil, refuse(gatewayUnknown, parameter, "names no gateway")
	case len(found) == 0:
		return nil, fail(noGateway)
	case len(found) > maxUsageGateways:
		return nil, bad(parameter, "selects %d gateways: select at most %d, with namespace and gateway", len(found),
			maxUsageGateways)
	}
	return found, nil
}

// operatorsOf returns the given gateways, each with the operator of its cluster.
func operatorsOf(ctx context.Context, found []*gateway.Gateway) (asked []usage.Gateway, err error) {
	for _, g := range found {
		operator := fleetOf(ctx).Operators[g.Cluster]
		if operator == nil {
			return nil, fail(usageOff)
		}
		asked = append(asked, usage.Gateway{Name: nameOf(g), ID: g.ID(), Operator: operator})
	}
	return asked, nil
}

// nameOf returns NAMESPACE/NAME of a gateway, after the name of its cluster if the service has several.
func nameOf(g *gateway.Gateway) string { return strings.TrimPrefix(g.Cluster+"/"+g.ID(), "/") }

// usageAnswer returns the body of an answer.
func usageAnswer(q inspection.UsageQuery, a usage.Answer, now time.Time) Usage {
	out := Usage{
		From: q.From.UTC().Truncate(time.Minute), To: q.To.UTC().Add(time.Minute - 1).Truncate(time.Minute),
		Total: UsageFigures{
			Sessions: a.Total.Sessions, Seconds: a.Total.Seconds, Sent: UsageCount(a.Total.Sent),
			Received: UsageCount(a.Total.Received),
		},
		Entries: []UsageEntry{}, PodsAsked: a.PodsAsked, PodsAnswered: a.PodsAnswered, Complete: a.Complete,
		Truncated: a.Truncated,
	}
	if now := now.UTC().Truncate(time.Second); out.To.After(now) {
		out.To = now
	}
	if !a.Since.IsZero() {
		out.Since = &a.Since
	}
	for i := range a.Entries {
		e := &a.Entries[i]
		shown := UsageEntry{Sent: UsageCount(e.Sent), Received: UsageCount(e.Received)}
		if q.By != inspection.UsageByRoute {
			shown.Sessions, shown.Seconds = &e.Sessions, &e.Seconds
		}
		switch {
		case e.Name == "":
		case q.By == inspection.UsageByRoute:
			shown.Route = &e.Name
		case q.By == usage.Gateways:
			shown.Gateway = &e.Name
		default:
			shown.User = &e.Name
		}
		out.Entries = append(out.Entries, shown)
	}
	return out
}

// noteUsage records a request for usage for the audit log.
func noteUsage(ctx context.Context, q inspection.UsageQuery, asked []usage.Gateway, a usage.Answer) {
	names := make([]string, 0, len(asked))
	for _, g := range asked {
		names = append(names, g.Name)
	}
	line := []slog.Attr{
		slog.Any("gateways", names), slog.String("by", string(q.By)),
		slog.String("from", q.From.UTC().Format(time.RFC3339)), slog.String("to", q.To.UTC().Format(time.RFC3339)),
		slog.String("pods", fmt.Sprintf("%d of %d", a.PodsAnswered, a.PodsAsked)),
	}
	if q.User != "" {
		line = append(line, slog.String("user", strings.ToValidUTF8(q.User, "")))
	}
	callOf(ctx).outcome.effect = &effect{"gave usage", line}
}
