package rest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/revoke"
)

const (
	// maxRevoked is the maximum length of a user name in bytes (RFC 8489 §14.3).
	maxRevoked = 508
	// maxRevokedGateways is the maximum number of names in a revocation.
	maxRevokedGateways = 64
	// clockLeeway is how far the clock of the writer of a revocation may be ahead.
	clockLeeway = 5 * time.Second
	// expiredMargin is how long a revocation is kept after the last credential has expired.
	expiredMargin = time.Hour
)

// issuedBefore returns the time before which credentials of a user at a gateway are revoked, in seconds since 1970. It
// returns 0 if the user is not revoked there. It reads the revocations in the config of the gateway, and the
// revocations that this service has written and the config does not have yet.
func (s server) issuedBefore(g *gateway.Gateway, userID string, now time.Time) int64 {
	if g.Authority.SharedSecret == "" {
		return 0
	}
	return max(g.Revoked.IssuedBefore(userID, now), s.Revocations.IssuedBefore(g.Namespace, g.Name, userID, now))
}

// CreateRevocation answers POST /v1/revocations.
func (s server) CreateRevocation(
	ctx context.Context, r CreateRevocationRequestObject,
) (CreateRevocationResponseObject, error) {
	who := identityOf(ctx)
	if err := s.mayRevoke(who); err != nil {
		return nil, err
	}
	now := s.Now()
	subject, err := subjectOf(deref(r.Body), who, now)
	if err != nil {
		return nil, err
	}
	targets, last, err := s.targets(ctx, who, deref(r.Body).Gateways, now)
	if err != nil {
		return nil, err
	}
	if subject.User != "" {
		// Credentials of the current second are revoked too. After the revocation, the service puts the next second
		// into credentials as their time of issue.
		subject.IssuedBefore = now.Unix() + 1
		subject.Until = last.Add(expiredMargin).Unix()
	}
	if until := deref(r.Body).Until; until != nil {
		if !until.After(now.Add(time.Second)) || until.After(now.Add(credential.MaxTTL)) {
			return nil, bad("until", "must be in the future, and at most 366 days ahead")
		}
		subject.Until = until.Unix() + 1 // a fraction of a second counts as a whole second
	}
	list := revocationsFor(subject, targets, callerHash(who))
	if deref(r.Body).Until == nil {
		s.extend(list, now)
	}
	storing, done := s.stage(ctx, "store revocations")
	err = s.Revocations.Put(storing, list)
	done()
	if err != nil {
		return nil, s.storeFailure(ctx, err)
	}
	noteRevocation(ctx, "revoked", list[0])
	return CreateRevocation201JSONResponse(apiRevocation(list)), nil
}

// extend makes revocations end no earlier than those that they replace. The service may have restarted since, and then
// does not know the earlier lifetimes of gateways. A user that writes Revocations may have set any end.
func (s server) extend(list []revoke.Revocation, now time.Time) {
	until := int64(0)
	for _, r := range list {
		until = max(until, r.Until, min(s.Revocations.Until(r.Namespace, r.ID), now.Add(credential.MaxTTL).Unix()))
	}
	for i := range list {
		list[i].Until = until
	}
}

// ListRevocations answers GET /v1/revocations.
func (s server) ListRevocations(
	ctx context.Context, _ ListRevocationsRequestObject,
) (ListRevocationsResponseObject, error) {
	byID, err := s.liftable(ctx)
	if err != nil {
		return nil, err
	}
	out := ListRevocations200JSONResponse{Revocations: []Revocation{}}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		out.Revocations = append(out.Revocations, apiRevocation(byID[id]))
	}
	return out, nil
}

// DeleteRevocation answers DELETE /v1/revocations/{id}.
func (s server) DeleteRevocation(
	ctx context.Context, r DeleteRevocationRequestObject,
) (DeleteRevocationResponseObject, error) {
	byID, err := s.liftable(ctx)
	if err != nil {
		return nil, err
	}
	list := byID[r.ID]
	if len(list) == 0 {
		return nil, fail(revocationUnknown)
	}
	storing, done := s.stage(ctx, "delete revocations")
	err = s.Revocations.Delete(storing, list)
	done()
	if err != nil {
		return nil, s.storeFailure(ctx, err)
	}
	noteRevocation(ctx, "lifted", list[0])
	return DeleteRevocation204Response{}, nil
}

// mayRevoke returns an error if the caller may not revoke anything, or if the service stores no revocations.
func (s server) mayRevoke(who *access.Identity) error {
	switch {
	case who.Grant.Revoke == access.Nobody:
		return fail(revokeNotAllowed)
	case s.Revocations == nil:
		return fail(revocationsOff)
	}
	return nil
}

// liftable returns, by ID, the revocations that the caller may delete. These are the revocations that the caller may
// also create.
func (s server) liftable(ctx context.Context) (map[string][]revoke.Revocation, error) {
	who := identityOf(ctx)
	if err := s.mayRevoke(who); err != nil {
		return nil, err
	}
	listing, done := s.stage(ctx, "list revocations")
	all, err := s.Revocations.List(listing)
	done()
	if err != nil {
		return nil, s.storeFailure(ctx, err)
	}
	byID := map[string][]revoke.Revocation{}
	for _, r := range all {
		byID[r.ID] = append(byID[r.ID], r)
	}
	for id, list := range byID {
		if byID[id] = s.liftableOf(who, id, list); len(byID[id]) == 0 {
			delete(byID, id)
		}
	}
	return byID, nil
}

// liftableOf returns the revocations with an ID that the caller may lift, if they are complete: if they are all
// revocations with the ID, or if the ID is the hash of their subject and their gateways. Otherwise it returns none. A
// user with the right to write Revocations in a namespace can create one with the same ID. Such a revocation, which the
// caller may have no right to lift, does not prevent the caller from lifting the others.
func (s server) liftableOf(who *access.Identity, id string, list []revoke.Revocation) []revoke.Revocation {
	bySubject := map[credential.Revocation][]revoke.Revocation{}
	for _, r := range list {
		subject := credential.Revocation{User: r.User, Credential: r.Credential}
		bySubject[subject] = append(bySubject[subject], r)
	}
	for subject, same := range bySubject {
		user := subject.User
		if subject.Credential != "" {
			name, _ := credential.ParseUsername(subject.Credential)
			user = name.UserID
		}
		if !who.MayRevoke(user) {
			continue
		}
		var own []revoke.Revocation
		var names []string
		for _, r := range same {
			if s.covers(who, r) {
				own, names = append(own, r), append(names, namesIn(r)...)
			}
		}
		if revoke.IDOf(subject, names) == id || len(own) == len(list) {
			return own
		}
	}
	return nil
}

// covers reports whether the caller may use all gateways of a revocation.
func (s server) covers(who *access.Identity, r revoke.Revocation) bool {
	for _, set := range []access.Gateways{s.Gateways, who.Grant.Gateways, who.Gateways} {
		if len(r.Gateways) == 0 && !set.ContainsNamespace(r.Namespace) {
			return false
		}
		if slices.ContainsFunc(r.Gateways, func(name string) bool { return !set.Contains(r.Namespace, name) }) {
			return false
		}
	}
	return true
}

// subjectOf returns the user or the credential that a request revokes.
func subjectOf(body RevocationRequest, who *access.Identity, now time.Time) (r credential.Revocation, err error) {
	field, text := "user", deref(body.User)
	if body.Credential != nil {
		field, text = "credential", *body.Credential
	}
	switch {
	case body.User != nil && body.Credential != nil:
		return r, bad("credential", "is there together with user: send one of them")
	case body.User == nil && body.Credential == nil:
		return r, refuse(parameterMissing, "user", "is missing: send user or credential")
	case len(text) < 1 || len(text) > maxRevoked:
		return r, bad(field, "must have 1 to %d bytes", maxRevoked)
	case !utf8.ValidString(text) || !clean(text):
		return r, bad(field, "holds control characters or is no UTF-8")
	}
	if field == "user" {
		if !who.MayRevoke(text) {
			return r, refuse(revokeNotAllowed, field, "is not one that the caller may revoke")
		}
		return credential.Revocation{User: text}, nil
	}
	name, err := credential.ParseUsername(text)
	switch {
	case name.Expires.IsZero():
		return r, bad(field, "must be the whole user name of a time-limited credential, such as 1893456000:ada")
	case errors.Is(err, credential.ErrCaveatMalformed):
		return r, bad(field, "has malformed caveats, so that no gateway accepts it")
	case !who.MayRevoke(name.UserID):
		return r, refuse(revokeNotAllowed, field, "is not one that the caller may revoke")
	case !now.Before(name.Expires.Add(expiredMargin)):
		return r, bad(field, "has expired, so that no gateway accepts it")
	}
	until := min(name.Expires.Add(expiredMargin).Unix(), now.Add(credential.MaxTTL).Unix())
	return credential.Revocation{Credential: text, Until: until}, nil
}

// targets returns the gateways of a revocation by namespace. last is the latest expiry of the credentials that these
// gateways may have issued until now. A namespace with an empty list means all of its gateways, also future ones.
func (s server) targets(
	ctx context.Context, who *access.Identity, names *[]GatewayName, now time.Time,
) (_ map[string][]string, last time.Time, _ error) {
	filters, err := namesOf(names)
	if err != nil {
		return nil, last, err
	}
	found, err := s.gateways(ctx, who, credentialRequest{
		gateways: filters, parameter: func(i int) string { return fmt.Sprintf("gateways[%d]", i) },
	})
	if err != nil {
		return nil, last, err
	}
	if len(filters) == 0 {
		found, err = s.all(ctx, who, gateway.Preference{}) // gateways returns at most maxGateways
	}
	if err != nil {
		return nil, last, err
	}
	targets := map[string][]string{}
	for _, g := range found {
		if g.Authority.SharedSecret == "" || g.Namespace == "" {
			continue
		}
		if expiry := g.LastExpiry(now, s.MaxTTL); expiry.After(last) {
			last = expiry
		}
		whole := len(filters) == 0 && s.covers(who, revoke.Revocation{Namespace: g.Namespace})
		switch {
		case whole:
			targets[g.Namespace] = nil
		case !slices.Contains(targets[g.Namespace], g.Name):
			targets[g.Namespace] = append(targets[g.Namespace], g.Name)
		}
	}
	if len(targets) == 0 {
		return nil, last, fail(revokeStatic)
	}
	for _, of := range targets {
		if len(of) > maxRevokedGateways {
			return nil, last, bad("gateways", "must name at most %d of a namespace, because the policy does not allow all of them", maxRevokedGateways)
		}
	}
	return targets, last, nil
}

// namesOf converts the gateways in a request body to filters.
func namesOf(names *[]GatewayName) ([]gateway.Filter, error) {
	if names == nil {
		return nil, nil
	}
	if n := len(*names); n > maxRevokedGateways {
		return nil, bad("gateways", "must have 1 to %d entries, or be left out", maxRevokedGateways)
	}
	refs := make([]GatewayRef, 0, len(*names))
	for _, n := range *names {
		refs = append(refs, GatewayRef{Namespace: n.Namespace, Name: n.Name})
	}
	return filtersFor(&refs)
}

// revocationsFor returns a revocation for each namespace. All have the same ID.
func revocationsFor(subject credential.Revocation, targets map[string][]string, by string) (list []revoke.Revocation) {
	var names []string
	for _, namespace := range slices.Sorted(maps.Keys(targets)) {
		gateways := slices.Sorted(slices.Values(targets[namespace]))
		r := revoke.Revocation{Namespace: namespace, Gateways: gateways, By: by, Revocation: subject}
		list, names = append(list, r), append(names, namesIn(r)...)
	}
	for i := range list {
		list[i].ID = revoke.IDOf(subject, names)
	}
	return list
}

// namesIn returns the gateways of a revocation as NAMESPACE/NAME or NAMESPACE/*.
func namesIn(r revoke.Revocation) (names []string) {
	if len(r.Gateways) == 0 {
		return []string{r.Namespace + "/*"}
	}
	for _, name := range r.Gateways {
		names = append(names, r.Namespace+"/"+name)
	}
	return names
}

// apiRevocation returns the answer about revocations with one ID.
func apiRevocation(list []revoke.Revocation) Revocation {
	first := list[0]
	out := Revocation{ID: first.ID, Until: time.Unix(first.Until, 0).UTC(), Gateways: []string{}}
	if first.User != "" {
		out.User, out.IssuedBefore = &first.User, new(time.Unix(first.IssuedBefore, 0).UTC())
	} else {
		out.Credential = &first.Credential
	}
	for _, r := range list {
		out.Gateways = append(out.Gateways, namesIn(r)...)
	}
	slices.Sort(out.Gateways)
	return out
}

// callerHash returns a hash of the caller that is a label of Kubernetes.
func callerHash(who *access.Identity) string {
	sum := sha256.Sum256([]byte(who.Caller))
	return hex.EncodeToString(sum[:10])
}

// storeFailure returns the failure for an error of the store, and logs the error.
func (s server) storeFailure(ctx context.Context, err error) error {
	var full *revoke.FullError
	if errors.As(err, &full) {
		shown := full.Namespaces[:min(len(full.Namespaces), maxRevokedGateways)]
		return refuse(revocationsFull, "gateways", "there is no room in the namespaces "+strings.Join(shown, ", ")+
			"; other namespaces have the revocation")
	}
	s.Log.Error("store of revocations failed", "error", err, "request", requestOf(ctx))
	if errors.Is(err, revoke.ErrForbidden) {
		return fail(revocationsDenied)
	}
	return fail(revocationsFailed)
}

// noteRevocation records a changed revocation for the audit log.
func noteRevocation(ctx context.Context, did string, r revoke.Revocation) {
	user := r.User
	if r.Credential != "" {
		name, _ := credential.ParseUsername(r.Credential)
		user = name.UserID
	}
	callOf(ctx).outcome.effect = &effect{"changed revocation", []slog.Attr{
		slog.String("change", did), slog.String("revocation", r.ID), slog.String("user", strings.ToValidUTF8(user, "")),
	}}
}
