package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// Bodies of the documentation, in the types of generators with their defaults. Generators make a field with a default
// in the schema a required one, so the contract has no defaults in requests.
const (
	bodiesTypeScript = `import type { components, operations } from './api';

type Body = NonNullable<operations['createIceServers']['requestBody']>['content']['application/json'];
export const bodies: Body[] = [
  {},
  { ttl: 600 },
  { ttl: 600, transport: 'relay', gateways: [{ namespace: 'media', name: 'frankfurt' }] },
  { scope: { routes: ['media/janus'], allocations: 2 } },
];
export const cloudflare: components['schemas']['CloudflareRequest'] = { ttl: 600 };
export const configuration = (answer: components['schemas']['IceServers']): RTCConfiguration => answer;
// @ts-expect-error The contract refuses unknown fields.
export const mistyped: Body = { gateway: 'frankfurt' };
`
	bodiesGo = `package api

import "encoding/json"

func bodies() (text []byte, err error) {
	ttl, two, relay := int64(600), int64(2), IceServersRequestTransportRelay
	for _, body := range []CreateIceServersJSONRequestBody{
		{},
		{Ttl: &ttl},
		{Ttl: &ttl, Transport: &relay, Gateways: &[]GatewayRef{{Namespace: "media", Name: "frankfurt"}}},
		{Scope: &CredentialScope{Routes: &[]string{"media/janus"}, Allocations: &two}},
	} {
		if text, err = json.Marshal(body); err != nil {
			break
		}
	}
	return text, err
}
`
)

// The types of openapi-typescript with its defaults accept the bodies of the documentation, in strict TypeScript.
func TestOpenAPITypeScript(t *testing.T) {
	dir := t.TempDir()
	run(t, tool(t, "openapi-typescript", filepath.Join(harnesstest.Root(t), "openapi/auth.yaml"), "--output",
		filepath.Join(dir, "api.ts")))
	bodies := filepath.Join(dir, "bodies.ts")
	harnesstest.NoError(t, os.WriteFile(bodies, []byte(bodiesTypeScript), 0o644))
	run(t, tool(t, "tsc", "--strict", "--exactOptionalPropertyTypes", "--noEmit", "--lib", "ES2022,DOM", bodies))
}

// The client and types of oapi-codegen with its defaults accept the bodies of the documentation.
func TestOAPICodegen(t *testing.T) {
	root, dir := harnesstest.Root(t), t.TempDir()
	generate := exec.Command("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "api",
		"-o", filepath.Join(dir, "api.gen.go"), filepath.Join(root, "openapi/auth.yaml"))
	generate.Dir = filepath.Join(root, ".ci/tools")
	generate.Env = append(os.Environ(), "GOWORK=off")
	run(t, generate)
	harnesstest.NoError(t, os.WriteFile(filepath.Join(dir, "bodies.go"), []byte(bodiesGo), 0o644))
	// The module has the versions of the auth service, which are in the cache of modules.
	module := strings.NewReplacer("=> ../api", "=> "+filepath.Join(root, "services/api")).
		Replace(harnesstest.Read(t, "services/auth/go.mod"))
	harnesstest.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o644))
	sums := []byte(harnesstest.Read(t, "services/auth/go.sum"))
	harnesstest.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644))
	vet := exec.Command("go", "-C", dir, "vet", ".")
	vet.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	run(t, vet)
}
