package translate

import (
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// LostListener returns a listener that dataplanes serve and that publishing r.Config would remove by mistake: a held
// listener that a previous operator process published. Such a listener is missing in r.Config only while this process
// has not published a config of the Gateway yet, because Options.Published then does not contain it. published is the
// config that this process has published, nil for none; previous returns the names of the listeners that the previous
// process published.
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
