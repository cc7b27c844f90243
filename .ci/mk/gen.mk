# Generated files: deep copies, CRDs and the reference of the Kubernetes kinds, the HTTP contract of the auth service
# and the types of its clients, the TypeScript client as the test page loads it, the BPF programs, the reference of
# stunnerctl, the pages of load balancers and of conditions, the table of requirements, and files of the charts. The
# target tidy writes the module files.

CRDS := kustomize/base/crds
# The CRDs by which the operator validates a folder of YAML: go:embed reaches no file outside of the module.
EMBEDDED_CRDS := services/operator/internal/crd/crds
# Debian's clang 14. Its object holds paths, so it is compiled in its folder. The folder has no Go files: Go does not build a package with both without cgo.
BPF   := services/stunnerd/internal/offload/bpf
CLANG := clang -O2 -g -target bpfel -mcpu=v3 -Wall -Werror -I/usr/include/$(shell uname -m)-linux-gnu -fdebug-compilation-dir=.

# The test page loads the client as modules, without a bundler. The file of the types is removed, because it contains no
# code.
PAGE_CLIENT := services/auth/internal/demo/page/ice-servers

.PHONY: gen verify tidy

gen: $(TYPESCRIPT)/node_modules/.package-lock.json ## Write the generated files
	rm -f $(CRDS)/stunner.l7mp.io_*.yaml
	cd services/api && GOWORK=off $(call TOOL,controller-gen) object crd 'paths=./v1;./v1alpha1' output:crd:dir=../../$(CRDS)
	rm -rf $(EMBEDDED_CRDS)
	install -m 644 -D -t $(EMBEDDED_CRDS) $(CRDS)/stunner.l7mp.io_*.yaml \
		$(patsubst %,$(GATEWAY_API)/gateway.networking.k8s.io_%.yaml,gatewayclasses gateways udproutes referencegrants)
	$(SERVE_V1ALPHA2) $(EMBEDDED_CRDS)/$(UDPROUTES)
	GOWORK=off go -C .ci/tools tool oapi-codegen --config ../../openapi/auth.cfg.yaml ../../openapi/auth.yaml
	# the generated code parses the query again for each parameter, which takes a third of the time of a request
	sed -i -e 's/^\tvar params [A-Za-z]*$$/&\n\tquery := r.URL.Query()/' -e 's/ r\.URL\.Query(), &params/ query, \&params/' \
		services/auth/internal/rest/rest.gen.go
	GOWORK=off go -C services/auth run ./internal/rest/spec ../../openapi/auth.yaml internal/rest/openapi.json
	$(NODE_TOOLS)/openapi-typescript openapi/auth.yaml --output $(TYPESCRIPT)/src/types.gen.ts
	rm -rf $(PAGE_CLIENT)
	$(NODE_TOOLS)/tsc --project $(TYPESCRIPT) --outDir $(PAGE_CLIENT) --declaration false --removeComments && rm $(PAGE_CLIENT)/types.gen.js
	GOWORK=off $(call TOOL,crd-ref-docs) --config=.ci/reference/config.yaml --templates-dir=.ci/reference --renderer=markdown --source-path=services/api/v1 --output-path=docs/reference.md --log-level=ERROR
	cd $(BPF) && $(CLANG) -c turn.c -o turn.o && llvm-strip -g turn.o
	GOWORK=off go -C services/stunnerctl run . reference > docs/stunnerctl.md
	GOWORK=off go -C services/operator run ./internal/balancer/page > docs/providers.md
	GOWORK=off go -C services/operator run ./internal/condition/page internal/condition > docs/reference/problems.md
	GOWORK=off go -C services/api run ./telemetry/page > docs/reference/metrics.md
	GOWORK=off go -C dashboards run .
	GOWORK=off go -C .ci/tools run ./requirements ../..
	@$(MAKE) --no-print-directory charts

verify: $(TYPESCRIPT)/node_modules/.package-lock.json ## Fail if a generated file is not current
	@.ci/verify

# Releases are built without the workspace, and tests run with it: both must use the same versions.
tidy: ## Bring go.mod and go.sum of every module up to date
	go work sync
	@for m in $(MODULES) .ci/tools; do echo "go mod tidy: $$m"; GOWORK=off go -C $$m mod tidy; done
