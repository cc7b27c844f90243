package discovery

import "errors"

// ErrRejected is the error of an Event for a received config that is invalid. Any other Event.Err is an error of the
// connection to the source.
var ErrRejected = errors.New("config rejected")
