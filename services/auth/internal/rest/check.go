package rest

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
)

// Maximum lengths in openapi/auth.yaml: of maxUsername in bytes, of the others in characters.
const (
	maxUsername  = 128
	maxNamespace = 63
	maxName      = 253
)

// checkLength checks the minLength and maxLength of an optional string parameter.
func checkLength(parameter string, value *string, most int) error {
	if value == nil {
		return nil
	}
	if n := utf8.RuneCountInString(*value); n < 1 || n > most {
		return bad(parameter, "must have 1 to %d characters", most)
	}
	return nil
}

// checkTTL returns an error if the ttl in a request is less than 1. The maximum depends on the gateway, so it is
// checked later.
func checkTTL(ttl *int64) error {
	if ttl != nil && *ttl < 1 {
		return bad("ttl", notTTL)
	}
	return nil
}

// checkFilter checks the parameters that select gateways: gateway requires namespace, and listener requires gateway and
// namespace. Otherwise a name would match objects of other namespaces.
func checkFilter(namespace, name, listener *string) error {
	tooLong := cmp.Or(checkLength("namespace", namespace, maxNamespace),
		checkLength("gateway", name, maxName), checkLength("listener", listener, maxName))
	switch {
	case tooLong != nil:
		return tooLong
	case name != nil && namespace == nil:
		return refuse(parameterMissing, "gateway", "needs the parameter namespace")
	case listener != nil && name == nil:
		return refuse(parameterMissing, "listener", "needs the parameters namespace and gateway")
	}
	return nil
}

var (
	// hostName matches a host name of RFC 1123 §2.1, without a trailing dot.
	hostName = regexp.MustCompile(
		`^[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*$`,
	)
	// numeric matches an IPv4 address, valid or not.
	numeric = regexp.MustCompile(`^[0-9.]+$`)
)

// ValidHost reports whether a host is an IP address or host name that clients can connect to.
func ValidHost(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Zone() == "" && !ip.IsUnspecified()
	}
	return len(host) <= maxName && hostName.MatchString(host) && !numeric.MatchString(host)
}

func checkHost(host *string) error {
	if host != nil && !ValidHost(*host) {
		return bad("public-addr", "must be an IP address or a host name")
	}
	return nil
}

// userIDFor returns the user id for the credential in an answer. If the policy imposes a user id, the request may only
// repeat it, or the subject of its token; any other name is refused. If the policy lets the request choose, the name
// has 1 to maxUsername bytes, no control characters, and no colon, which separates the expiry in a TURN user name. If
// the request may choose and contains no user name, the result of missing is used. parameter is the name of the request
// parameter, for errors.
func userIDFor(
	who *access.Identity, parameter string, username *string, missing func() string,
) (string, error) {
	if !who.Chooses() {
		if username != nil {
			name := norm.NFC.String(*username) // RFC 8265 §3.4.2: equivalent code points are one user
			if name != who.UserID && (who.Subject == "" || name != norm.NFC.String(who.Subject)) {
				return "", refuse(userNotSubject, parameter, "is not that of the caller")
			}
		}
		return who.UserID, nil
	}
	if username == nil {
		if name := missing(); name != "" {
			return who.User(name)
		}
		return "", nil
	}
	name := norm.NFC.String(*username)
	if n := max(len(*username), len(name)); n < 1 || n > maxUsername {
		return "", bad(parameter, "must have 1 to %d bytes", maxUsername)
	}
	switch {
	case strings.Contains(name, ":"):
		return "", bad(parameter, "must not contain a colon")
	case !clean(name):
		return "", bad(parameter, "holds control characters or is no UTF-8")
	case credential.Marked(name):
		return "", bad(parameter, "must not begin like caveats: ~, digits, ~")
	}
	return who.User(name)
}

// checkRegion refuses a region that the service does not have.
func checkRegion(known *region.Map, name *string) error {
	switch {
	case name == nil:
		return nil
	case known == nil:
		return bad("region", "is not known: the service has one cluster, leave it out")
	case !slices.Contains(known.Names(), *name):
		return bad("region", "is not known: use one of %s", strings.Join(known.Names(), ", "))
	}
	return nil
}

// maxRoutes is the maximum number of routes in a scope.
const maxRoutes = 64

// caveatsOf converts the scope in a request body to caveats.
func caveatsOf(scope *CredentialScope) (credential.Caveats, error) {
	if scope == nil {
		return credential.Caveats{}, nil
	}
	if n := len(deref(scope.Routes)); scope.Routes != nil && (n < 1 || n > maxRoutes) {
		return credential.Caveats{}, bad("scope.routes", "must have 1 to %d entries, or be left out", maxRoutes)
	}
	for name, number := range map[string]*int64{
		"allocations": scope.Allocations, "bytesPerSecond": scope.BytesPerSecond, "bytes": scope.Bytes,
		"notBefore": scope.NotBefore,
	} {
		if number != nil && *number < 1 {
			return credential.Caveats{}, bad("scope."+name, "must be at least 1, or be left out")
		}
	}
	c := credential.Caveats{
		Routes: deref(scope.Routes), Allocations: deref(scope.Allocations),
		BytesPerSecond: deref(scope.BytesPerSecond), Bytes: deref(scope.Bytes), NotBefore: deref(scope.NotBefore),
	}
	var wrong *credential.FieldError
	if err := c.Validate(); errors.As(err, &wrong) {
		return credential.Caveats{}, bad("scope."+wrong.Field, "%s", wrong.Problem)
	}
	if c.IsZero() {
		return credential.Caveats{}, bad("scope", "must have a field, or be left out")
	}
	return c, nil
}

// filtersFor converts the list of gateways in a request body to filters. It returns an error if an entry is invalid, or
// if the list is empty or has more than maxGateways entries.
func filtersFor(refs *[]GatewayRef) ([]gateway.Filter, error) {
	if refs == nil {
		return nil, nil
	}
	if n := len(*refs); n < 1 || n > maxGateways {
		return nil, bad("gateways", "must have 1 to %d entries, or be left out", maxGateways)
	}
	var out []gateway.Filter
	for i, ref := range *refs {
		at := func(field string) string { return fmt.Sprintf("gateways[%d].%s", i, field) }
		err := cmp.Or(checkLength(at("namespace"), &ref.Namespace, maxNamespace),
			checkLength(at("name"), &ref.Name, maxName), checkLength(at("listener"), ref.Listener, maxName))
		if err != nil {
			return nil, err
		}
		out = append(out, gateway.Filter{Namespace: ref.Namespace, Name: ref.Name, Listener: deref(ref.Listener)})
	}
	return out, nil
}

// deref returns the value of an optional parameter of a request, or the zero value if it is missing. k8s.io/utils/ptr
// does the same, but the auth service must not import Kubernetes packages.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
