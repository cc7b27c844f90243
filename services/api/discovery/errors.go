package discovery

import "errors"

// ErrRejected is wrapped by the Err of an Event if a received config is invalid. Any other Err is an error of the
// connection to the source.
var ErrRejected = errors.New("config rejected")
