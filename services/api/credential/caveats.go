package credential

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Caveats are limits that an ephemeral credential carries in its user name, which is signed. A caveat only restricts
// the credential further: the lower limit of a caveat and a setting of the gateway applies. A field that is zero sets
// no limit. Their text form is
//
//	caveats = "~1" 1*( "~" caveat )           ; "~1~" is the marker, with the version of the form
//	caveat  = "R" namespace "_" udproute      ; a route whose peers can be reached; may be repeated
//	        / "G" namespace "_" gateway       ; the only gateway that accepts the credential
//	        / "A" number                      ; allocations of the user at a time
//	        / "S" number                      ; bytes a second, in each direction
//	        / "B" number                      ; bytes in all, of both directions together
//	        / "N" number                      ; not before this time, in seconds since 1970
//	        / "I" number                      ; issued at this time, in seconds since 1970 (see Revocation)
//	number  = "1"-"9" *DIGIT                  ; at most MaxCaveat
//
// in any order. For example, 1893456000:alice:~1~Rmedia_janus~A2 reaches the peers of route media/janus only, with at
// most two allocations.
//
// All characters are unreserved in URIs (RFC 3986 §2.3), are not escaped in JSON, and are the same after OpaqueString
// (RFC 8265 §4.2). Names of Kubernetes contain neither "~" and "_" nor capital letters, so nothing has to be escaped.
// A user id of another service is taken for caveats only if it ends with a field that begins with "~", digits and "~".
//
// A caveat that is not in this list is never ignored: an implementation that does not know it refuses the credential.
type Caveats struct {
	// Routes are the routes whose peers the credential reaches, as NAMESPACE/NAME.
	Routes []string `json:"routes,omitempty"`
	// Gateway is the gateway that accepts the credential, as NAMESPACE/NAME.
	Gateway string `json:"gateway,omitempty"`
	// Allocations is the largest number of allocations of the user id at a time.
	Allocations int64 `json:"allocations,omitempty"`
	// BytesPerSecond is the payload rate of all allocations with the credential together, for each direction.
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// Bytes is the payload of all allocations with the credential together, of both directions.
	Bytes int64 `json:"bytes,omitempty"`
	// NotBefore is the time at which the credential becomes valid, in seconds since 1970.
	NotBefore int64 `json:"notBefore,omitempty"`
	// IssuedAt is when the credential was issued, in seconds since 1970. It sets no limit of its own: a Revocation
	// refuses the credentials of a user that were issued before.
	IssuedAt int64 `json:"issuedAt,omitempty"`
}

// MaxCaveat is the largest number of a caveat: the largest integer that every JSON implementation reads exactly (RFC
// 8259 §6).
const MaxCaveat = 1<<53 - 1

// Errors of ParseCaveats.
var (
	// ErrCaveatMalformed is the error for caveats that are not in the text form.
	ErrCaveatMalformed = errors.New("malformed caveats")
	// ErrCaveatUnknown is the error for caveats of another version, or with a caveat that this release does not define.
	ErrCaveatUnknown = errors.New("unknown caveat")
)

const (
	mark    = '~'
	version = "1"
	route   = 'R'
	gateway = 'G'
)

// numbers has a row for each caveat that is a number.
var numbers = [...]struct {
	letter byte
	// field is the name of the field in JSON, for errors.
	field string
	of    func(*Caveats) *int64
	most  int64
	// narrower returns the narrower of two limits.
	narrower func(a, b int64) int64
}{
	{'A', "allocations", func(c *Caveats) *int64 { return &c.Allocations }, MaxCaveat, lower},
	{'S', "bytesPerSecond", func(c *Caveats) *int64 { return &c.BytesPerSecond }, MaxCaveat, lower},
	{'B', "bytes", func(c *Caveats) *int64 { return &c.Bytes }, MaxCaveat, lower},
	{'N', "notBefore", func(c *Caveats) *int64 { return &c.NotBefore }, lastExpiry, higher},
	{'I', "issuedAt", func(c *Caveats) *int64 { return &c.IssuedAt }, lastExpiry, lower},
}

func lower(a, b int64) int64  { return min(a, b) }
func higher(a, b int64) int64 { return max(a, b) }

// IsZero reports whether there is no caveat.
func (c Caveats) IsZero() bool {
	return len(c.Routes) == 0 && c.Gateway == "" &&
		c.Allocations == 0 && c.BytesPerSecond == 0 && c.Bytes == 0 && c.NotBefore == 0 && c.IssuedAt == 0
}

// Names reports whether the caveats let the credential reach the peers of a route.
func (c Caveats) Names(route string) bool {
	return len(c.Routes) == 0 || slices.Contains(c.Routes, route)
}

// Marked reports whether a field of a user name begins with the marker of caveats, of any version. No field of a user
// id may begin with it.
func Marked(field string) bool {
	if len(field) == 0 || field[0] != mark {
		return false
	}
	digits := strings.TrimLeft(field[1:], "0123456789")
	return len(digits) < len(field)-1 && len(digits) > 0 && digits[0] == mark
}

// ParseCaveats reads the text form of caveats. The error is ErrCaveatMalformed if any part is malformed, and otherwise
// ErrCaveatUnknown if the version or a caveat is not known. The result is then the zero value.
func ParseCaveats(text string) (Caveats, error) {
	if !Marked(text) {
		return Caveats{}, ErrCaveatMalformed
	}
	number, list, _ := strings.Cut(text[1:], string(mark))
	if number != version {
		return Caveats{}, ErrCaveatUnknown
	}
	var c Caveats
	known := true
	for caveat := range strings.SplitSeq(list, string(mark)) {
		if len(caveat) < 2 {
			return Caveats{}, ErrCaveatMalformed
		}
		switch err := c.add(caveat[0], caveat[1:]); {
		case errors.Is(err, ErrCaveatUnknown):
			known = false
		case err != nil:
			return Caveats{}, err
		}
	}
	if !known {
		return Caveats{}, ErrCaveatUnknown
	}
	return c, nil
}

// add adds one caveat.
func (c *Caveats) add(letter byte, value string) error {
	switch letter {
	case route:
		name, ok := readName(value)
		if !ok || slices.Contains(c.Routes, name) {
			return ErrCaveatMalformed
		}
		c.Routes = append(c.Routes, name)
		return nil
	case gateway:
		name, ok := readName(value)
		if !ok || c.Gateway != "" {
			return ErrCaveatMalformed
		}
		c.Gateway = name
		return nil
	}
	for _, n := range numbers {
		if n.letter != letter {
			continue
		}
		v, err := strconv.ParseUint(value, 10, 64)
		if err != nil || value[0] < '1' || v > uint64(n.most) || *n.of(c) != 0 {
			return ErrCaveatMalformed
		}
		*n.of(c) = int64(v)
		return nil
	}
	if letter < 'A' || letter > 'Z' {
		return ErrCaveatMalformed
	}
	return ErrCaveatUnknown
}

// String returns the text form, or nothing without caveats. It does not depend on the order of the caveats in a parsed
// text, except for the order of routes.
func (c Caveats) String() string {
	if c.IsZero() {
		return ""
	}
	b := append([]byte{mark}, version...)
	for _, name := range c.Routes {
		b = appendName(append(b, mark, route), name)
	}
	if c.Gateway != "" {
		b = appendName(append(b, mark, gateway), c.Gateway)
	}
	for _, n := range numbers {
		if v := *n.of(&c); v != 0 {
			b = strconv.AppendInt(append(b, mark, n.letter), v, 10)
		}
	}
	return string(b)
}

// FieldError is the error of Validate. Field is a name in the JSON form of Caveats.
type FieldError struct{ Field, Problem string }

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// maxRoutes is larger than the number of routes in any user name, because the shortest route takes six bytes.
const maxRoutes = 128

// Validate returns an error for values that have no text form.
func (c Caveats) Validate() error {
	if len(c.Routes) > maxRoutes {
		return &FieldError{"routes", fmt.Sprintf("must have at most %d entries", maxRoutes)}
	}
	for i, name := range c.Routes {
		if !isName(name) {
			return &FieldError{fmt.Sprintf("routes[%d]", i), "must be NAMESPACE/NAME of a UDPRoute"}
		}
		if slices.Contains(c.Routes[:i], name) {
			return &FieldError{fmt.Sprintf("routes[%d]", i), "must not repeat a route"}
		}
	}
	if c.Gateway != "" && !isName(c.Gateway) {
		return &FieldError{"gateway", "must be NAMESPACE/NAME of a Gateway"}
	}
	for _, n := range numbers {
		if v := *n.of(&c); v < 0 || v > n.most {
			return &FieldError{n.field, fmt.Sprintf("must be between 1 and %d", n.most)}
		}
	}
	return nil
}

// ErrDisjoint is the error of Narrow if the result would allow nothing.
var ErrDisjoint = errors.New("the caveats exclude each other: they have no route or gateway in common")

// Narrow returns the intersection of c and d: caveats that allow only what both of them allow. The error is ErrDisjoint
// if they have no route or no gateway in common: an empty list would allow all.
func (c Caveats) Narrow(d Caveats) (Caveats, error) {
	switch {
	case len(c.Routes) == 0:
		c.Routes = slices.Clone(d.Routes)
	case len(d.Routes) > 0:
		c.Routes = slices.DeleteFunc(slices.Clone(c.Routes), func(r string) bool { return !d.Names(r) })
		if len(c.Routes) == 0 {
			return Caveats{}, ErrDisjoint
		}
	}
	switch {
	case c.Gateway == "":
		c.Gateway = d.Gateway
	case d.Gateway != "" && d.Gateway != c.Gateway:
		return Caveats{}, ErrDisjoint
	}
	for _, n := range numbers {
		mine, other := n.of(&c), *n.of(&d)
		switch {
		case *mine == 0:
			*mine = other
		case other != 0:
			*mine = n.narrower(*mine, other)
		}
	}
	return c, nil
}

// readName returns NAMESPACE/NAME for the text form NAMESPACE_NAME.
func readName(text string) (name string, ok bool) {
	namespace, rest, _ := strings.Cut(text, "_")
	name = namespace + "/" + rest
	return name, isName(name)
}

func appendName(b []byte, name string) []byte {
	namespace, rest, _ := strings.Cut(name, "/")
	return append(append(append(b, namespace...), '_'), rest...)
}

// The longest names of Kubernetes, in bytes: of a namespace (RFC 1123 label), and of other objects (subdomain).
const (
	maxLabel     = 63
	maxSubdomain = 253
)

// isName reports whether a text is NAMESPACE/NAME with names that are valid in Kubernetes.
func isName(text string) bool {
	namespace, name, _ := strings.Cut(text, "/")
	if !isLabel(namespace) || len(namespace) > maxLabel || len(name) > maxSubdomain {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !isLabel(label) {
			return false
		}
	}
	return true
}

// isLabel reports whether a text consists of lower case letters, digits and hyphens, and neither begins nor ends with a
// hyphen.
func isLabel(text string) bool {
	for _, b := range []byte(text) {
		if (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '-' {
			return false
		}
	}
	return text != "" && text[0] != '-' && text[len(text)-1] != '-'
}
