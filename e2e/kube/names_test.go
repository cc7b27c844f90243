package kube

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

var starts = flag.Int("starts", 3, "how often TestRestart_SeparatesRoutesOfOneName starts the operator")

// The operator lists the kinds of routes in any order when it starts. A route of the Gateway API must never replace the
// route of the stunner.l7mp.io group with the same name: the port range of the latter is in the config after every
// start.
func TestRestart_SeparatesRoutesOfOneName(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	namespace := "metadata: {namespace: " + s.name + ", "
	s.apply(strings.ReplaceAll(`
---
apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: rooms}
spec: {prefixes: [198.51.100.21]}`+
		udpRoute(
			"twins", "{name: front-door}",
			"{group: stunner.l7mp.io, kind: StaticService, name: rooms, port: 10000, endPort: 10010}",
		)+
		officialUDPRoute(
			"twins", "{name: front-door}", "{group: stunner.l7mp.io, kind: StaticService, name: rooms, port: 1}",
		), "metadata: {", namespace))
	const want = "198.51.100.21:<10000-10010>"
	right := 0
	for range *starts {
		s.stop()
		s.start()
		clusters := s.config().Clusters
		if slices.ContainsFunc(clusters, func(c config.Cluster) bool {
			return c.Name == s.name+"/twins" && slices.Equal(c.Endpoints, []string{want})
		}) {
			right++
		} else {
			t.Errorf("clusters %+v, want %s/twins with %s", clusters, s.name, want)
		}
	}
	t.Logf("port ranges are right after %d of %d starts", right, *starts)
}
