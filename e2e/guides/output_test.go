package guides

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/stunner-gateway/stunner/e2e/internal/guide"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// prints runs the commands of stunnerctl in the guide, which must end with code 0. If the next block of the guide is
// text, it is output: each of its lines must be the beginning of a line in the output of the commands, except for
// numbers. icetest lasts a second and accepts gaps and losses, which depend on the speed of the machine.
func (p *environment) prints() {
	p.Helper()
	shown := 0
	for i, block := range p.page.Blocks {
		if block.Language != "sh" || !strings.HasPrefix(block.Text, "stunnerctl ") {
			continue
		}
		var output strings.Builder
		for _, command := range (guide.Page{Blocks: []guide.Block{block}}).Commands() {
			args, echo := strings.Fields(command)[1:], ""
			switch args[0] {
			case "icetest":
				echo = p.deployEcho()
				args = append(args, "--duration", "1s", "--max-gap", "20s", "--max-loss", "50", "--echo-address", echo)
				fallthrough
			case "why", "doctor":
				args = append(args, "--auth-server-address", strings.TrimPrefix(p.authURL, "http://"))
			}
			out, err := p.stunnerctl(p.Context(), args...)
			if echo != "" {
				p.deleteEcho(echo)
			}
			p.Logf("%s\n%s", command, out)
			if err != nil {
				p.Errorf("%s: %v", command, err)
			}
			output.Write(out)
		}
		if i+1 == len(p.page.Blocks) || p.page.Blocks[i+1].Language != "text" {
			continue
		}
		shown++
		have := "\n" + plain(output.String())
		for line := range strings.Lines(p.page.Blocks[i+1].Text) {
			if !strings.Contains(have, "\n"+plain(strings.TrimRight(line, "\n"))) {
				p.Errorf("guide %s shows a line that is not printed: %s", p.page.Name, line)
			}
		}
	}
	if shown == 0 {
		p.Errorf("guide %s shows no output of stunnerctl", p.page.Name)
	}
}

// stunnerctl runs stunnerctl with the output folder of the operator.
func (p *environment) stunnerctl(ctx context.Context, args ...string) ([]byte, error) {
	return exec.CommandContext(ctx, filepath.Join(p.bin, "stunnerctl"), append(args, "--folder", p.out)...).CombinedOutput()
}

// echoFile is the file of the objects that icetest deploys in a cluster.
const echoFile = "icetest.yaml"

// deployEcho creates the objects that icetest deploys in a cluster, and returns the address of the echo peer.
func (p *environment) deployEcho() string {
	p.Helper()
	gateway, address := p.gateway(), net.JoinHostPort(publicAddress, strconv.Itoa(harnesstest.Port(p)))
	_, port, _ := strings.Cut(address, ":")
	text := strings.NewReplacer(
		"NAMESPACE", gateway.Namespace, "GATEWAY", gateway.Name, "ADDRESS", publicAddress, "PORT", port,
	).Replace(echoObjects)
	harnesstest.NoError(p, os.WriteFile(filepath.Join(p.in, echoFile), []byte(text), 0o600))
	p.await(func(ctx context.Context) error {
		if out, err := p.stunnerctl(ctx, "can-reach", gateway.Namespace+"/"+gateway.Name, address); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return address
}

// deleteEcho deletes the objects of deployEcho, and waits until the dataplane runs the config without them.
func (p *environment) deleteEcho(address string) {
	p.Helper()
	harnesstest.NoError(p, os.Remove(filepath.Join(p.in, echoFile)))
	gateway := p.gateway()
	p.await(func(ctx context.Context) error {
		if out, err := p.stunnerctl(ctx, "can-reach", gateway.Namespace+"/"+gateway.Name, address); err == nil {
			return fmt.Errorf("clients still reach the echo peer: %s", out)
		}
		return p.healthy(ctx)
	})
}

const echoObjects = `
apiVersion: v1
kind: Service
metadata: {name: icetest, namespace: NAMESPACE}
spec: {ports: [{name: media, port: PORT, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: icetest, namespace: NAMESPACE, labels: {kubernetes.io/service-name: icetest}}
addressType: IPv4
endpoints: [{addresses: [ADDRESS]}]
ports: [{name: media, port: PORT, protocol: UDP}]
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: icetest, namespace: NAMESPACE}
spec:
  parentRefs: [{name: GATEWAY}]
  rules: [{backendRefs: [{name: icetest, port: PORT}, {name: GATEWAY}]}]
`

var (
	revision = regexp.MustCompile(`[0-9a-f]{8}…`)
	number   = regexp.MustCompile(`\d+(\.\d+)*`)
	spaces   = regexp.MustCompile(`[ \t]+`)
)

// plain replaces numbers, addresses and the width of columns.
func plain(text string) string {
	return spaces.ReplaceAllString(number.ReplaceAllString(revision.ReplaceAllString(text, "N…"), "N"), " ")
}
