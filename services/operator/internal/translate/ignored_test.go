package translate_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Condition InputIgnored reports a log level if and only if dataplanes ignore a part of it.
func TestLogLevel_IgnoredAsInDataplanes(t *testing.T) {
	for _, level := range []string{
		"", "all:INFO", "all:info", "debug", "turn:DEBUG, all:ERROR", "turn:DEBUG,", ":DEBUG", " :DEBUG", "turn:", "turn:LOUD",
		"turn: debug", "listener-media/edge/udp:TRACE", "a:b:WARN", "all:WARNING", "all:INFO,info", ",", "all;INFO", "all:DISABLE ",
	} {
		key := types.NamespacedName{Namespace: "turn", Name: "site"}
		gc := &stunnerv1.GatewayConfig{Spec: stunnerv1.GatewayConfigSpec{LogLevel: level}}
		gc.Namespace, gc.Name = key.Namespace, key.Name
		told := false
		for _, c := range translate.GatewayConfig(resource.NewView([]resource.Object{gc}), key, translate.DefaultOptions()).Conditions {
			told = told || c.Type == condition.InputIgnored
		}
		if _, err := telemetry.ParseLevels(level); told != (err != nil) {
			t.Errorf("%q: InputIgnored %v, but a dataplane reads it with %v", level, told, err)
		}
	}
}
