package translate

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// expiredMargin is how long a Revocation of a credential without spec.until stays in force after the credential has
// expired. It covers differences of clocks, and sessions that spec.sessionGrace lets continue.
const expiredMargin = time.Hour

// revocationOf returns the revocation in a config that results from a Revocation. If the Revocation has no effect, it
// returns the reason instead.
func revocationOf(r *stunnerv1.Revocation) (credential.Revocation, condition.Finding) {
	revoked := credential.Revocation{User: r.Spec.User, Credential: r.Spec.Credential}
	switch {
	case r.Spec.Credential != "" && r.Spec.IssuedBefore != nil:
		return revoked, condition.RevocationIssuedBefore()
	case r.Spec.Credential != "":
		name, err := credential.ParseUsername(r.Spec.Credential)
		if name.Expires.IsZero() && err != nil {
			return revoked, condition.RevocationStatic()
		}
		revoked.Until = name.Expires.Add(expiredMargin).Unix()
	default:
		issuedBefore := r.CreationTimestamp.Add(time.Second)
		switch {
		case r.Spec.IssuedBefore != nil:
			issuedBefore = r.Spec.IssuedBefore.Time
		case r.CreationTimestamp.IsZero():
			return revoked, condition.RevocationUndated()
		}
		revoked.IssuedBefore = issuedBefore.Unix()
		revoked.Until = issuedBefore.Add(credential.MaxTTL).Unix()
	}
	if r.Spec.Until != nil {
		revoked.Until = r.Spec.Until.Unix()
	}
	if revoked.Until <= revoked.IssuedBefore {
		return revoked, condition.RevocationEnds()
	}
	if err := config.CheckRevocation(revoked); err != nil {
		return revoked, condition.RevocationInvalid(err)
	}
	return revoked, condition.Finding{}
}

// revocations returns the revocations that are in force at a Gateway.
func revocations(v *resource.View, gateway types.NamespacedName, now time.Time) (all []credential.Revocation) {
	for _, r := range v.RevocationsIn(gateway.Namespace) {
		if len(r.Spec.Gateways) > 0 && !slices.Contains(r.Spec.Gateways, gateway.Name) {
			continue
		}
		if revoked, finding := revocationOf(r); finding.OK() && revoked.InForce(now) {
			all = append(all, revoked)
		}
	}
	return credential.MergeRevocations(all)
}

// Revoked returns Result.Revoked for a Gateway whose translation panics.
func Revoked(v *resource.View, gateway types.NamespacedName, opt Options) *config.Config {
	return revokedIf(true, v, gateway, opt)
}

// revokedIf returns Result.Revoked if the published config stays in force.
func revokedIf(stays bool, v *resource.View, gateway types.NamespacedName, opt Options) *config.Config {
	if !stays || opt.Published == nil {
		return nil
	}
	now := revocations(v, gateway, opt.Now.Time)
	if slices.Equal(now, credential.MergeRevocations(opt.Published.Auth.Revocations)) {
		return nil
	}
	c := opt.Published.Clone()
	c.Auth.Revocations = now
	return &c
}

// withoutRevoked returns Result.Revoked for a Gateway that is Held. Certificates stay while the parameters cannot be
// resolved, because spec.legacyGrants is then unknown.
func (d draft) withoutRevoked() *config.Config {
	changed := revokedIf(true, d.view, resource.KeyOf(d.gateway), d.opt)
	if d.opt.Published == nil || !d.findings.parameters.OK() {
		return changed
	}
	c := cmp.Or(changed, d.opt.Published).Clone()
	for i, l := range d.listeners {
		named := func(entry config.Listener) bool { return entry.Name == d.listenerName(l) }
		at := slices.IndexFunc(c.Listeners, named)
		if at < 0 || !l.revoked || !d.firstOfName(i) {
			continue
		}
		entry, permitted := &c.Listeners[at], d.configListener(l)
		if slices.Equal(entry.AllCertificates(), permitted.AllCertificates()) {
			continue
		}
		entry.Cert, entry.Key, entry.Certificates = permitted.Cert, permitted.Key, permitted.Certificates
		if changed = &c; len(l.certificates) == 0 {
			c.Listeners = slices.Delete(c.Listeners, at, at+1)
		}
	}
	return changed
}

// Revocation computes the status of a Revocation: whether it can be used, and the Gateways that have it.
func Revocation(v *resource.View, key types.NamespacedName, opt Options) ConditionsResult {
	r := v.Revocation(key)
	if r == nil {
		return ConditionsResult{}
	}
	revoked, finding := revocationOf(r)
	if unread := unreadFinding(r); !unread.OK() {
		finding = unread
	}
	if finding.OK() && !v.RevocationHasRoom(key) {
		finding = condition.RevocationsOverBudget(key.Namespace, resource.MaxRevocations, resource.MaxRevocationBytes)
	}
	good, before := condition.ReasonAccepted, v.RevocationStatus(key).Conditions
	u := users{noun: resource.KindGateway, namespace: r.Namespace}
	var warning condition.Finding
	switch {
	case !finding.OK():
	case !revoked.InForce(opt.Now.Time):
		good = condition.ReasonExpired
	default:
		u, warning = usersOfRevocation(v, r)
	}
	wanted := []condition.Condition{condition.Holds(condition.Accepted, good, finding)}
	if !warning.OK() {
		wanted = append(wanted, condition.True(condition.InputIgnored, warning))
	}
	wanted = append(wanted, opt.inUse(u, before)...)
	return ConditionsResult{true, condition.Merge(before, r.Generation, opt.Now, wanted...)}
}

// usersOfRevocation returns the Gateways that refuse the credentials of a Revocation. It warns about Gateways in
// spec.gateways that do not exist, and about Gateways without time-limited credentials.
func usersOfRevocation(v *resource.View, r *stunnerv1.Revocation) (users, condition.Finding) {
	names := r.Spec.Gateways
	if len(names) == 0 {
		for _, key := range v.GatewaysIn(r.Namespace) {
			names = append(names, key.Name)
		}
	}
	set, missing, static := resource.Set{}, []string(nil), []string(nil)
	for _, name := range names {
		switch key := (types.NamespacedName{Namespace: r.Namespace, Name: name}); {
		case v.Gateway(key) == nil:
			missing = append(missing, name)
		case v.IgnoresRevocations(key):
			static = append(static, name)
		default:
			set[key] = struct{}{}
		}
	}
	var found []condition.Finding
	if len(missing) > 0 {
		found = append(found, condition.RevocationGateways(missing))
	}
	if len(static) > 0 {
		found = append(found, condition.RevocationIgnored(static))
	}
	u := users{noun: resource.KindGateway, namespace: r.Namespace}
	u.add(set)
	return u, condition.Join(found)
}
