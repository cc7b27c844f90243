package rest

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

const notTTL = "must be an integer of at least 1"

// Lengths of the contract.
const (
	maxUsername  = 128
	maxNamespace = 63
	maxName      = 253
)

// bad is a 400 about one parameter.
func bad(parameter, format string, args ...any) *failure {
	return refuse(http.StatusBadRequest, parameter, fmt.Sprintf(format, args...))
}

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

// checkTTL checks what can be known without the gateway.
func checkTTL(ttl *int64) error {
	if ttl != nil && *ttl < 1 {
		return bad("ttl", notTTL)
	}
	return nil
}

// checkFilter says what a filter needs: names without the names above them would silently match something else.
func checkFilter(namespace, name, listener *string) error {
	for _, c := range []struct {
		parameter string
		value     *string
		most      int
	}{{"namespace", namespace, maxNamespace}, {"gateway", name, maxName}, {"listener", listener, maxName}} {
		if err := checkLength(c.parameter, c.value, c.most); err != nil {
			return err
		}
	}
	switch {
	case name != nil && namespace == nil:
		return bad("gateway", "needs the parameter namespace")
	case listener != nil && name == nil:
		return bad("listener", "needs the parameters namespace and gateway")
	}
	return nil
}

var (
	// hostName is RFC 1123 §2.1, without a trailing dot.
	hostName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*$`)
	// numeric is what can only be an IPv4 address, or a mistyped one.
	numeric = regexp.MustCompile(`^[0-9.]+$`)
)

// ValidHost tells whether clients can be told to connect to this host: an IP address or a host name.
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

// userIDFor decides whose credential it is. With a token, that is the token's subject; naming somebody else is refused. An open
// service believes the name, if it has no colon: that would shift the expiry.
func userIDFor(who access.Identity, username *string) (string, error) {
	if username == nil {
		return who.UserID, nil
	}
	name := norm.NFC.String(*username) // RFC 8265 §3.4.2: two ways to type a name are one user
	if n := max(len(*username), len(name)); n < 1 || n > maxUsername {
		return "", bad("username", "must have 1 to %d bytes", maxUsername)
	}
	if who.Known {
		if name != norm.NFC.String(who.Subject) {
			return "", refuse(http.StatusForbidden, "username", "is not the subject of the token")
		}
		return who.UserID, nil
	}
	if strings.Contains(name, ":") {
		return "", bad("username", "must not contain a colon")
	}
	return name, nil
}

// filtersFor reads the gateways of a request body.
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
		if err := checkLength(at("namespace"), &ref.Namespace, maxNamespace); err != nil {
			return nil, err
		}
		if err := checkLength(at("name"), &ref.Name, maxName); err != nil {
			return nil, err
		}
		if err := checkLength(at("listener"), ref.Listener, maxName); err != nil {
			return nil, err
		}
		out = append(out, gateway.Filter{Namespace: ref.Namespace, Name: ref.Name, Listener: deref(ref.Listener)})
	}
	return out, nil
}

// deref reads an optional parameter; left out means the zero value.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
