package kube

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// restore returns the config of a Gateway that an earlier operator process published, from the standby Secret. It
// returns nil if there is no such Secret, or if the operator did not write it. known is false while the Secret is being
// fetched: the Gateway is translated again when it has arrived.
//
// The cached Secret is checked first. Secrets of other authors, which may be large, are thus not fetched. The content
// leaves the view at once, because the config is needed only once.
func (l *loop) restore(ref translate.ObjectRef) (c *config.Config, known bool) {
	gateway, secret := ref.NamespacedName, manifest.StandbyKey(ref.NamespacedName)
	cached := l.published.standby(gateway)
	if cached == nil || l.unusable[gateway] == cached.ResourceVersion {
		return nil, true
	}
	uid, keys := l.view.Gateway(gateway).UID, l.writer.objects.standbyKeys.all()
	err := manifest.CheckStandby(cached, gateway, uid, configSum(cached), keys)
	if err == nil {
		if !l.haveSecret(ref, secret) {
			return nil, false
		}
		content := l.view.Secret(secret)
		if c, err = manifest.ReadStandby(content, gateway, uid, keys); content != nil {
			l.view.Delete(content)
			l.secrets.release(secret)
		}
	}
	if err != nil {
		l.unusable[gateway] = cached.ResourceVersion
		l.published.log.Warn("cannot restore the config of a Gateway: its standby Secret is unusable",
			"gateway", gateway, "secret", secret, "error", err)
		return nil, true
	}
	l.published.log.Info("config restored from the standby Secret", "gateway", gateway, "secret", secret,
		"revision", c.Revision())
	return c, true
}

// setAuthority sets the CA from which the keys of forwarding and of standby Secrets are derived.
func (l *loop) setAuthority(a trust.Authority, now time.Time) {
	l.rollouts.forwarding.setAuthority(a)
	keys, err := a.StandbyKeys(now)
	if err != nil {
		l.published.log.Error("cannot authenticate standby Secrets", "error", err)
		return
	}
	l.writer.setStandbyKeys(keys)
}
