package server

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// T-12: the users behind one address are not counted by address unless the config says so.
func TestSourceQuotaIsThatOfTheConfig(t *testing.T) {
	for _, quota := range []int{0, 1, 100} {
		if got := bounds(config.Admin{SourceQuota: quota}, session.Amounts{}).SourceSessions; got != quota {
			t.Errorf("source_quota %d: %d sessions of a source", quota, got)
		}
	}
}
