package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// In mode strict, a dataplane pod that connects without TLS or without a token gets no config, for example a pod with
// an image of the existing system. Then the Gateway is not Programmed, and its message names the Dataplane, the pod and
// the remedy. A pod that uses its token causes no such message.
func TestRefusedDataplaneIsNamed(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https"} {
		t.Run("over "+scheme, func(t *testing.T) {
			t.Parallel()
			g := guard(t, "strict")
			g.expose("192.0.2.7")
			g.mount()
			g.setStatus("pod/dataplane", `{"phase":"Running","podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}`)
			path := "/" + g.name + "/front-door"
			if code, _, err := g.ask("https", g.podToken("dataplane"), path); code != http.StatusOK {
				t.Fatalf("a token is answered with %d, %v", code, err)
			}
			g.processed()
			g.sees("gateway/front-door", condition("Programmed"), "True")
			g.sees("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].message`, "")

			g.await(func(ctx context.Context) error { // the operator gets the address of the pod through a watch
				if code, _, err := g.ask(scheme, "", path); err == nil && code == http.StatusOK {
					return errors.New("the pod gets the config")
				}
				const of = `.status.conditions[?(@.type=="Programmed")].message`
				said, err := control.Field(ctx, g.name, "gateway/front-door", of)
				want := fmt.Sprintf("Dataplane %s: pod dataplane gets no config", g.name)
				if err == nil && (!strings.Contains(said, want) || !strings.Contains(said, "--discovery-auth=pod-address")) {
					err = fmt.Errorf("condition Programmed says %q, want %q", said, want)
				}
				return err
			})
			g.sees("gateway/front-door", condition("Programmed"), "False")
		})
	}
}
