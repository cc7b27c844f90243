package faults

import (
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// realm, port and protocol change under live calls, and no session is lost.
func TestR13(t *testing.T) {
	b := newBench(t)
	b.run()
	live := b.calls(1)
	b.apply(b.changed(func(c *config.Config) { c.Auth.Realm = "other.example.org" }))
	b.unharmed(live, time.Second)
}
