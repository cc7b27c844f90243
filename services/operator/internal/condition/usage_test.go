package condition_test

import (
	"fmt"
	"testing"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
)

// Ten thousand users, created one by one, change the message only a few times.
func TestUsageMessageChangesRarely(t *testing.T) {
	var said []string
	for n := range 10_001 {
		c := condition.Usage("Gateway", n, make([]string, min(n, condition.MaxUsers)))
		if len(said) == 0 || said[len(said)-1] != c.Message {
			said = append(said, c.Message)
		}
		var order int
		if _, err := fmt.Sscanf(c.Message, "more than %d Gateways", &order); n > condition.MaxUsers &&
			(err != nil || order >= n || order*5 < n*2) {
			t.Errorf("%d users: %q", n, c.Message)
		}
	}
	if len(said) > 20 {
		t.Errorf("%d changes: %q", len(said), said)
	}
}
