package guides

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/guide"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// TestGameServer: the client of the guide, which is compiled from the page, reaches a server that has only the address
// of its pod, with credentials of the auth service. Without the Gateway, no client reaches the pod.
func TestGameServer(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	p := newEnvironment(t, guide.Read(t, "game-server"))
	const server = podAddress + ":7654"
	dir := t.TempDir()
	source, client := filepath.Join(dir, "client.go"), filepath.Join(dir, "client")
	harnesstest.NoError(t, os.WriteFile(source, []byte(p.page.File(t, "client.go")), 0o600))
	build := exec.Command("go", "build", "-o", client, source)
	build.Dir = filepath.Join(harnesstest.Root(t), "e2e")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.inPod(harness.Command{
		Name: "echo", Path: filepath.Join(harnesstest.Build(t, harness.Echo), "echo"), Args: p.args("game"), Logs: dir,
	}, func(ctx context.Context) error { return echoes(ctx, p.pod, server) })

	if err := echoes(t.Context(), p.clients, server); err == nil {
		t.Error("a client reaches the pod without the Gateway")
	}
	var out []byte
	var err error
	ice := p.serve(map[string]http.Handler{"/v1/ice-servers": proxy(p.authURL)}) + "/v1/ice-servers"
	p.clients.Do(func() { out, err = exec.CommandContext(t.Context(), client, ice, server).CombinedOutput() })
	if want := p.page.Of("text")[0]; err != nil || string(out) != want {
		t.Errorf("client: %v\n%swant\n%s", err, out, want)
	}
	p.prints()
}

// args returns the arguments of the container of a Deployment of the page.
func (p *environment) args(deployment string) []string {
	p.Helper()
	for _, object := range p.page.Objects(p) {
		if object["kind"] != "Deployment" {
			continue
		}
		var d appsv1.Deployment
		harnesstest.NoError(p, guide.Convert(object, &d))
		if d.Name == deployment {
			return slices.Clone(d.Spec.Template.Spec.Containers[0].Args)
		}
	}
	p.Fatalf("guide %s has no Deployment %s", p.page.Name, deployment)
	return nil
}

// echoes returns nil if an address echoes a datagram from a namespace within a second.
func echoes(ctx context.Context, from *netns.Space, address string) error {
	conn, err := from.Dial(ctx, "udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("there?")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 16))
	return err
}
