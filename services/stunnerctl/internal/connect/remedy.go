package connect

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Unreached is an error of a connection to the operator, with its remedy.
type Unreached struct {
	Err    error
	Remedy string
	// Denied is set if the user has no right to connect.
	Denied bool
}

func (u *Unreached) Error() string { return fmt.Sprintf("%v: %s", u.Err, u.Remedy) }

func (u *Unreached) Unwrap() error { return u.Err }

// Split splits an error into its text without the remedy, and the remedy. It also reports whether the reason is a
// missing right. Remedy is empty if the error has none.
func Split(err error) (text, remedy string, denied bool) {
	text = err.Error()
	var u *Unreached
	if errors.As(err, &u) {
		text, remedy, denied = strings.Replace(text, ": "+u.Remedy, "", 1), u.Remedy, u.Denied
	}
	return text, remedy, denied
}

// reachError adds the remedy to an error of the API server about the operator's namespace.
func reachError(err error, namespace string) error {
	if !isForbidden(err) {
		return err
	}
	return &Unreached{Err: err, Denied: true, Remedy: fmt.Sprintf("ask for the Role %s of namespace %s, which the "+
		"chart binds with inspection.reachableBy, or use --operator URL", reachRole, namespace)}
}

// isForbidden reports whether the API server has refused a request. client-go returns the refusal of a forwarded port
// as text only.
func isForbidden(err error) bool {
	text := err.Error()
	return apierrors.IsForbidden(err) ||
		strings.Contains(text, "is forbidden") && strings.Contains(text, "pods/portforward")
}
