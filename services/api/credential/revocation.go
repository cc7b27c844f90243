package credential

import (
	"cmp"
	"slices"
	"time"
)

// Revocation refuses ephemeral credentials until a time: all credentials of a user that were issued before
// IssuedBefore, or a single credential. It has either User or Credential.
//
// An ephemeral credential contains its expiry, and not when it was issued. The service that issues credentials adds
// Caveats.IssuedAt to credentials of a revoked user. A credential without this caveat counts as issued before any
// revocation, independent of its expiry, because services with other lifetimes may have issued it.
//
// Static credentials are not revoked: all clients share them, and they have no time of issue.
type Revocation struct {
	// User is the user id of the refused credentials, as Username.UserID.
	User string `json:"user,omitempty"`
	// Credential is the whole user name of the refused credential.
	Credential string `json:"credential,omitempty"`
	// IssuedBefore is in seconds since 1970. Credentials of User that were issued at this time or later are accepted.
	// It has no effect on a single credential.
	IssuedBefore int64 `json:"issued_before,omitempty"`
	// Until is when the last of the refused credentials has expired, in seconds since 1970. From then on the revocation
	// has no effect.
	Until int64 `json:"until"`
}

// InForce reports whether a revocation has an effect at a time.
func (r Revocation) InForce(now time.Time) bool { return now.Unix() < r.Until }

// MergeRevocations returns revocations in a canonical order, with one for each user and each credential. It merges
// several into one with the latest IssuedBefore and the latest Until. It returns nil for an empty list, and does not
// modify the list.
func MergeRevocations(list []Revocation) []Revocation {
	sorted := slices.SortedFunc(slices.Values(list), func(a, b Revocation) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Credential, b.Credential))
	})
	var merged []Revocation
	for _, r := range sorted {
		if last := len(merged) - 1; last >= 0 && merged[last].User == r.User && merged[last].Credential == r.Credential {
			merged[last].IssuedBefore = max(merged[last].IssuedBefore, r.IssuedBefore)
			merged[last].Until = max(merged[last].Until, r.Until)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// Revocations finds the revocation of a credential. A nil *Revocations has none. It does not change, so several
// goroutines may use it.
type Revocations struct{ users, credentials map[string]Revocation }

// NewRevocations returns the revocations of a list.
func NewRevocations(list []Revocation) *Revocations {
	if len(list) == 0 {
		return nil
	}
	r := &Revocations{users: map[string]Revocation{}, credentials: map[string]Revocation{}}
	for _, one := range MergeRevocations(list) {
		switch {
		case one.User != "":
			r.users[one.User] = one
		case one.Credential != "":
			r.credentials[one.Credential] = one
		}
	}
	return r
}

// Revoked reports whether an ephemeral credential is refused at a time. username is its complete user name, and name is
// the result of ParseUsername for it. Revoked does not allocate.
func (r *Revocations) Revoked(username string, name Username, now time.Time) bool {
	if r == nil {
		return false
	}
	if one, found := r.credentials[username]; found && one.InForce(now) {
		return true
	}
	return name.Caveats.IssuedAt < r.IssuedBefore(name.UserID, now)
}

// IssuedBefore returns the earliest time of issue with which a new credential of a user is accepted, in seconds since
// 1970. It returns 0 if no revocation of the user is in force.
func (r *Revocations) IssuedBefore(userID string, now time.Time) int64 {
	if r == nil {
		return 0
	}
	if one, found := r.users[userID]; found && one.InForce(now) {
		return one.IssuedBefore
	}
	return 0
}
