package credential

import (
	"strings"
	"time"
)

// Username is the parsed user name of an ephemeral credential.
type Username struct {
	Expires time.Time
	UserID  string
	// Caveats is the zero value for a name without caveats.
	Caveats Caveats
}

// separator separates the fields of a user name.
const separator = ":"

// firstExpiry is the lowest number in a user name that is interpreted as an expiry, and not as a numeric user id. It is
// a time in 2001.
const firstExpiry = 1_000_000_000

// lastExpiry is the last second of the year 9999. It prevents overflows of time arithmetic.
const lastExpiry = 253_402_300_799

// ParseUsername splits the user name of an ephemeral credential at colons into expiry, user id and caveats. The first
// field that is a number between firstExpiry and lastExpiry is the expiry. It may be before or after the user id, or
// alone. The last field contains the caveats if it begins with a marker (see Caveats) and there is also a field of the
// user id, which may be empty.
//
// The error is ErrUnknownUser for a name without an expiry. It is ErrCaveatUnknown or ErrCaveatMalformed if caveats are
// not accepted, and the result then has the expiry and the user id. A marker in any other field is ErrCaveatMalformed:
// signed caveats in another place must not be ignored. ParseUsername does not allocate for a name without caveats,
// unless the expiry is between two parts of the user id.
func ParseUsername(username string) (Username, error) {
	var name Username
	begin, end, fields, strays := -1, 0, 0, 0
	rest, text := username, ""
	for at, more := 0, true; more; fields++ {
		var field string
		field, _, more = strings.Cut(username[at:], separator)
		seconds, ok := expiry(field)
		switch {
		case begin < 0 && ok:
			begin, end, name.Expires = at, at+len(field), time.Unix(seconds, 0)
		case !Marked(field):
		case !more && fields >= 2:
			rest, text = username[:at-len(separator)], field
		default:
			strays++
		}
		at += len(field) + len(separator)
	}
	if begin < 0 {
		return Username{}, ErrUnknownUser
	}
	name.UserID = without(rest, begin, end)
	var err error
	if text != "" {
		name.Caveats, err = ParseCaveats(text)
	}
	if strays > 0 {
		name.Caveats, err = Caveats{}, ErrCaveatMalformed
	}
	return name, err
}

// without returns the fields of a name without the field between begin and end.
func without(name string, begin, end int) string {
	switch {
	case end == len(name):
		return name[:max(0, begin-len(separator))]
	case begin == 0:
		return name[end+len(separator):]
	}
	return name[:begin-len(separator)] + name[end:]
}

// expiry returns the time that a field of a user name contains, in seconds since 1970.
func expiry(field string) (seconds int64, ok bool) {
	for _, digit := range []byte(field) {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		if seconds = 10*seconds + int64(digit-'0'); seconds > lastExpiry {
			return 0, false
		}
	}
	return seconds, seconds >= firstExpiry
}
