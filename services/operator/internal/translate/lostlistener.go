package translate

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// LostListener returns a listener in use that would be lost if r.Config were published. This can only happen after a
// restart: r.Config then lacks the held listeners, because Options.Published, from which they are kept, is nil until
// this process has published a config of the Gateway.
//
// published is the config that this process has published, or nil. previous returns the names of the listeners that the
// previous process published.
func (r Result) LostListener(published *config.Config, previous func() []string) (listener string, lost bool) {
	if published != nil || len(r.HeldListeners) == 0 {
		return "", false
	}
	served := previous()
	i := slices.IndexFunc(r.HeldListeners, func(l string) bool { return slices.Contains(served, l) })
	if i < 0 {
		return "", false
	}
	return r.HeldListeners[i], true
}
