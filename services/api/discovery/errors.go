package discovery

import "errors"

// ErrRejected is wrapped by the Err of an Event that says: a config arrived and was kept out, because it does not parse or does not
// validate. Any other Err is about the connection to the source.
var ErrRejected = errors.New("config rejected")
