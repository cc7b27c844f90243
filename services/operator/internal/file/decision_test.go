package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// The loop acts on the decision of the translation alone: for every cause it publishes, keeps or withdraws the config,
// the objects, the status and the host ports, as the decision requires. Package kube has the same table for a cluster.
// A restart of the operator, with or without dataplanes, does not change the result.
func TestTheLoopActsOnTheDecision(t *testing.T) {
	type effects struct {
		published bool
		kept      bool // objects, status and host ports exist
		status    bool // the status is written
		says      string
	}
	want := map[translate.Decision]effects{
		translate.Served:    {published: true, kept: true, status: true, says: "is published"},
		translate.Held:      {published: true, kept: true, status: true, says: "config and objects stay as they are: see"},
		translate.Classless: {published: true, kept: true, says: "does not exist: config and objects stay as they are"},
		translate.Foreign:   {},
		translate.Gone:      {},
	}
	for name, row := range map[string]struct {
		change   func(*site)
		decision translate.Decision
	}{
		"nothing":             {func(*site) {}, translate.Served},
		"the Gateway is gone": {func(s *site) { s.remove("gateway.yaml") }, translate.Gone},
		"the class is gone": {func(s *site) {
			s.write("class.yaml", classYAML[strings.Index(classYAML, "---"):])
		}, translate.Classless},
		"the file of the class is gone": {func(s *site) { s.remove("class.yaml") }, translate.Classless},
		"the class is misspelt": {func(s *site) {
			s.write("gateway.yaml", strings.Replace(gatewayYAML, "ClassName: turn", "ClassName: trun", 1))
		}, translate.Classless},
		"the class is that of another controller": {func(s *site) {
			s.write("class.yaml", strings.Replace(classYAML, translate.DefaultControllerName, "example.net/other", 1))
		}, translate.Foreign},
		"the parameters of the class are of another kind": {func(s *site) {
			s.write("class.yaml", strings.Replace(classYAML, "kind: GatewayConfig", "kind: ConfigMap", 1))
		}, translate.Held},
		"the Dataplane is gone": {func(s *site) {
			s.write("class.yaml", classYAML[:strings.Index(classYAML, "---")])
		}, translate.Held},
		"the config is gone": {func(s *site) {
			s.write("config.yml", configYAML[strings.Index(configYAML, "---"):])
		}, translate.Held},
		"the Secret is gone": {func(s *site) {
			s.write("config.yml", configYAML[:strings.Index(configYAML, "---")])
		}, translate.Held},
		"the config of the Gateway is missing": {func(s *site) {
			s.write("gateway.yaml", gatewayYAML+`  infrastructure:
    parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: absent}
`)
		}, translate.Held},
	} {
		t.Run(name, func(t *testing.T) {
			s, key := newSite(t), types.NamespacedName{Namespace: "calls", Name: "door"}
			if err := s.provider.prepare(); err != nil {
				t.Fatal(err)
			}
			start := func() *loop {
				t.Helper()
				l, err := newLoop(s.provider, discovery.NewServer(discovery.ServerOptions{Log: s.provider.Log}), "")
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			round := func(l *loop) translate.Decision {
				t.Helper()
				if err := l.round(); err != nil {
					t.Fatal(err)
				}
				for _, r := range l.last.gateways {
					if r.Key == key {
						return r.Decision
					}
				}
				return ""
			}
			l := start()
			if round(l) != translate.Served || l.current(key) == nil {
				t.Fatal("the Gateway is not served before the change")
			}
			ports, effect := l.ports.chosen, want[row.decision]
			check := func(when string, l *loop, published bool) {
				t.Helper()
				if got := l.current(key) != nil; got != published {
					t.Errorf("%s: published %t, want %t", when, got, published)
				}
				if _, got := l.saved.Published[key.String()]; got != effect.kept {
					t.Errorf("%s: recorded as published %t, want %t", when, got, effect.kept)
				}
				for _, path := range []string{"objects/calls/deployment-door.yaml", "status/gateway/calls_door.yaml"} {
					_, err := os.Stat(filepath.Join(s.provider.Output, path))
					if err != nil && !errors.Is(err, fs.ErrNotExist) {
						t.Fatal(err)
					}
					if got := err == nil; got != effect.kept {
						t.Errorf("%s: %s exists %t, want %t", when, path, got, effect.kept)
					}
				}
				if got := l.out.written[l.out.path("status", "gateway", "calls_door.yaml")]; got != effect.status {
					t.Errorf("%s: the status is written %t, want %t", when, got, effect.status)
				}
				kept := map[string]assignment{}
				if effect.kept {
					kept = ports
				}
				if diff := cmp.Diff(kept, l.ports.chosen); diff != "" {
					t.Errorf("%s: the ports have changed (-want +got):\n%s", when, diff)
				}
				if text := s.output("status.txt"); !strings.Contains(text, effect.says) {
					t.Errorf("%s: status.txt does not say %q:\n%s", when, effect.says, text)
				}
			}
			row.change(s)
			// An object counts as removed only after a while. A removed Gateway is decided once, in the round that
			// removes it.
			until(t, "the decision is "+string(row.decision), func() bool { return round(l) == row.decision })
			check("running", l, effect.published)

			// The operator is down during the same change.
			s.provider.Output = t.TempDir()
			for name, text := range map[string]string{
				"class.yaml": classYAML, "config.yml": configYAML, "gateway.yaml": gatewayYAML,
			} {
				s.write(name, text)
			}
			if err := s.provider.prepare(); err != nil {
				t.Fatal(err)
			}
			l = start()
			if round(l) != translate.Served {
				t.Fatal("the Gateway is not served before the restart")
			}
			ports = l.ports.chosen
			row.change(s)
			l = start()
			if got := round(l); got != row.decision {
				t.Fatalf("restarted: %s, want %s", got, row.decision)
			}
			check("restarted", l, effect.published)
			round(l)
			check("restarted, second round", l, effect.published)
		})
	}
}
