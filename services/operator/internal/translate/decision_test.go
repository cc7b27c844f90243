package translate_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

const lobbyYAML = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: turn, name: lobby, uid: 7d3e, generation: 3}
spec:
  gatewayClassName: edge
  listeners:
    - {name: udp, port: 3478, protocol: TURN-UDP}
    - {name: late, port: 5349, protocol: TURN-UDP}
`

// lobbyCase returns Gateway turn/lobby with all base objects.
func lobbyCase(t *testing.T) *testCase {
	c := &testCase{options: translate.DefaultOptions(), objects: decodeChecked(t, "lobby.yaml", []byte(lobbyYAML))}
	c.options.Now = now
	c.objects = append(c.objects, c.missingOf(base(t), nil)...)
	return c
}

// find returns the object of a case with this identity.
func find[T resource.Object](t *testing.T, c *testCase, name string) T {
	t.Helper()
	for _, o := range c.objects {
		if identity(o) == name {
			return o.(T)
		}
	}
	t.Fatalf("case has no %s", name)
	panic("unreachable")
}

// Each cause leads to one decision. Only a Gateway that does not exist or that belongs to another controller loses its
// config and its objects: an object that is missing or invalid takes nothing away, whether a config is published, an
// earlier operator process has published one, or nothing was ever published.
func TestEachCauseHasItsDecision(t *testing.T) {
	class := func(edit func(*gwapiv1.GatewayClass)) func(*testing.T, *testCase) {
		return func(t *testing.T, c *testCase) { edit(find[*gwapiv1.GatewayClass](t, c, "GatewayClass edge")) }
	}
	gateway := func(edit func(*gwapiv1.GatewaySpec)) func(*testing.T, *testCase) {
		return func(t *testing.T, c *testCase) { edit(&find[*gwapiv1.Gateway](t, c, "Gateway turn/lobby").Spec) }
	}
	without := func(name string) func(*testing.T, *testCase) {
		return func(t *testing.T, c *testCase) {
			gone := find[resource.Object](t, c, name)
			for i, o := range c.objects {
				if o == gone {
					c.objects = append(c.objects[:i:i], c.objects[i+1:]...)
					return
				}
			}
		}
	}
	own := gateway(func(s *gwapiv1.GatewaySpec) {
		s.Infrastructure = &gwapiv1.GatewayInfrastructure{ParametersRef: &gwapiv1.LocalParametersReference{
			Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "own",
		}}
	})
	for name, row := range map[string]struct {
		change func(*testing.T, *testCase)
		want   translate.Decision
		// restarted is the decision if only an earlier operator process has published a config; want if it is empty.
		restarted translate.Decision
	}{
		"nothing": {func(*testing.T, *testCase) {}, translate.Served, ""},
		"one of two listeners is invalid": {gateway(func(s *gwapiv1.GatewaySpec) {
			s.Listeners[1].Protocol = "TURN-UPD"
		}), translate.Served, translate.Held},

		"no Gateway": {without("Gateway turn/lobby"), translate.Gone, ""},
		"no Gateway and no class": {func(t *testing.T, c *testCase) {
			without("Gateway turn/lobby")(t, c)
			without("GatewayClass edge")(t, c)
		}, translate.Gone, ""},
		"the class is that of another controller": {class(func(gc *gwapiv1.GatewayClass) {
			gc.Spec.ControllerName = "example.net/other"
		}), translate.Foreign, ""},
		"the class is that of another controller and has no parameters": {class(func(gc *gwapiv1.GatewayClass) {
			gc.Spec.ControllerName, gc.Spec.ParametersRef = "example.net/other", nil
		}), translate.Foreign, ""},
		"the flag names another controller": {func(_ *testing.T, c *testCase) {
			c.options.ControllerName = "example.net/other"
		}, translate.Foreign, ""},

		"no class":          {without("GatewayClass edge"), translate.Classless, ""},
		"a misspelt class":  {gateway(func(s *gwapiv1.GatewaySpec) { s.GatewayClassName = "egde" }), translate.Classless, ""},
		"an unset class":    {gateway(func(s *gwapiv1.GatewaySpec) { s.GatewayClassName = "" }), translate.Classless, ""},
		"no GatewayConfig":  {without("GatewayConfig turn/site"), translate.Held, ""},
		"no Dataplane":      {without("Dataplane default"), translate.Held, ""},
		"no Secret":         {without("Secret turn/site-users"), translate.Held, ""},
		"no own config":     {own, translate.Held, ""},
		"no parametersRef":  {class(func(gc *gwapiv1.GatewayClass) { gc.Spec.ParametersRef = nil }), translate.Held, ""},
		"no valid listener": {gateway(func(s *gwapiv1.GatewaySpec) { s.Listeners = nil }), translate.Held, ""},
		"parametersRef of another kind": {class(func(gc *gwapiv1.GatewayClass) {
			gc.Spec.ParametersRef.Kind = "ConfigMap"
		}), translate.Held, ""},
		"parametersRef without namespace": {class(func(gc *gwapiv1.GatewayClass) {
			gc.Spec.ParametersRef.Namespace = nil
		}), translate.Held, ""},
		"own configs are denied": {func(t *testing.T, c *testCase) {
			c.options.OwnConfigs = translate.OwnConfigsDeny
			own(t, c)
		}, translate.Held, ""},
		"a Secret without its keys": {func(t *testing.T, c *testCase) {
			find[*corev1.Secret](t, c, "Secret turn/site-users").Data = nil
		}, translate.Held, ""},
		"an address that is not allowed": {gateway(func(s *gwapiv1.GatewaySpec) {
			s.Addresses = []gwapiv1.GatewaySpecAddress{{Value: "192.0.2.77"}}
		}), translate.Held, ""},
	} {
		key := types.NamespacedName{Namespace: "turn", Name: "lobby"}
		published := translate.Gateway(lobbyCase(t).view(), key, lobbyCase(t).options).Config
		if published == nil || len(published.Listeners) != 2 {
			t.Fatal("the Gateway is not served before the change")
		}
		for _, history := range []string{"published", "restarted", "fresh"} {
			c, want := lobbyCase(t), row.want
			row.change(t, c)
			switch history {
			case "published":
				c.options.Published = published
			case "restarted":
				c.options.Previous = listenerNames(published)
				if row.restarted != "" {
					want = row.restarted
				}
			}
			r := translate.Gateway(c.view(), key, c.options)
			if r.Decision != want {
				t.Errorf("%s, %s: %s, want %s", name, history, r.Decision, want)
			}
			checkResults(t, outcome{Gateways: []translate.Result{r}})
			frozen := want == translate.Held || want == translate.Classless
			if needs := history != "published" && (frozen || row.restarted != ""); r.NeedsPublished != needs {
				t.Errorf("%s, %s: needs the published config %t, want %t", name, history, r.NeedsPublished, needs)
			}
			promised := strings.Contains(messagesOf(r), "what was published before stays in force")
			if promises := want == translate.Held && history == "published"; promised != promises {
				t.Errorf("%s, %s: that the config stays is promised %t, want %t", name, history, promised, promises)
			}
			if ours := want == translate.Served || want == translate.Held; r.Decision.Ours() != ours {
				t.Errorf("%s, %s: status written %t, want %t", name, history, r.Decision.Ours(), ours)
			}
			if ends := want == translate.Gone || want == translate.Foreign; r.Decision.Ends() != ends {
				t.Errorf("%s, %s: ends %t, want %t", name, history, r.Decision.Ends(), ends)
			}
			u := translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: key}
			if out := u.Translate(c.view(), c.options); out.Gateway.Decision != want || out.Ours != want.Ours() {
				t.Errorf("%s, %s: the outcome is %s, ours %t", name, history, out.Gateway.Decision, out.Ours)
			}
			sockets, decision := translate.Sockets(c.view(), key, c.options)
			if decision.Ours() != want.Ours() || decision.Ends() != want.Ends() || !decision.Ours() && sockets != nil {
				t.Errorf("%s, %s: the sockets %v are those of a Gateway that is %s", name, history, sockets, decision)
			}
		}
	}
}

// messagesOf returns the messages of the conditions of a Gateway.
func messagesOf(r translate.Result) (text string) {
	for _, c := range r.Status.Conditions {
		text += c.Message + "\n"
	}
	return text
}
