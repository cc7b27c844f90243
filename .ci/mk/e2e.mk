# Images of the services, and a real cluster that runs them.

IMAGE_REPOSITORY ?= ghcr.io/stunner-gateway
IMAGE_TAG        ?= $(shell awk '/newTag:/ { print $$2; exit }' kustomize/components/images/kustomization.yaml)
IMAGE_ARCHS      ?= $(shell go env GOARCH)

# The variable that holds the version of a release.
RELEASE := github.com/stunner-gateway/stunner/services/api/telemetry.release

# pack FOLDER TAG: builds the program for each architecture with the versions of its module, as the Dockerfile and ko do, and packs one image.
PACK = mkdir -p bin/images; pack() { \
  local name=$${1\#\#*/} arch programs=(); \
  for arch in $(IMAGE_ARCHS); do \
    programs+=("$(CURDIR)/bin/linux-$$arch/$$name"); \
    CGO_ENABLED=0 GOOS=linux GOARCH=$$arch GOWORK=off go -C "$$1" build -trimpath -ldflags="-s -w -X $(RELEASE)=v$$2" -o "$${programs[-1]}" .; \
  done; \
  GOWORK=off go -C .ci/tools run ./pack -ref "$(IMAGE_REPOSITORY)/$$name:$$2" -o "$(CURDIR)/bin/images/$$name.tar" "$${programs[@]}"; }

# Images: the services, and the echo peer of docs/examples/cluster. stunnerctl runs on the machine of its user.
IMAGES := $(filter-out services/stunnerctl,$(SERVICES:bin/%=services/%)) e2e/echo

# Images for the test cluster only.
TEST_IMAGES := e2e/internal/node/pause .ci/dns

# The earlier commit of upgrade tests. There the chart generated the credentials, and the operator's ServiceAccount owned no objects.
EARLIER := 6808f04226a114861f4994949e46d105a93b8354

# Tests to run, as in go test -run, and their flags: make e2e RUN=TestAutoscaling ARGS='-outage 10m'.
RUN  ?= .
ARGS ?=

.PHONY: images plugin release e2e

images: ## Pack the services and an echo peer into bin/images: OCI archives, each with an SPDX bill of materials
	@$(PACK); for folder in $(IMAGES); do pack $$folder "$(IMAGE_TAG)"; done

plugin: ## Build the plugin "kubectl stunner" into bin/plugin: archives of all platforms (PLATFORMS) and the manifest for krew
	@.ci/plugin "v$(IMAGE_TAG)" bin/plugin

# Go finds the commit in clones, and not in linked worktrees of git.
release: ## Build everything that a release publishes into bin/release, without a registry, in two clones of HEAD; check it, and compare both
	@from=$$(mktemp -d); trap 'rm -rf "$$from"' EXIT; \
	git clone --quiet . "$$from/clone-1"; git clone --quiet "$$from/clone-1" "$$from/clone-2"; \
	for n in 1 2; do \
	  "$$from/clone-$$n/.ci/release" -d "$$from/$$n" "v$(IMAGE_TAG)" >"$$from/said" || { cat "$$from/said"; exit 1; }; \
	done; \
	diff --recursive "$$from/1" "$$from/2"; \
	mkdir -p bin; rm -rf bin/release; mv "$$from/2" bin/release; \
	cat "$$from/said"; echo "bin/release: the same bytes twice"

# Charts and images of that commit, built by its own Makefile, as release 0.0.9.
bin/earlier/$(EARLIER):
	@from=$$(mktemp -d); trap 'rm -rf "$$from"' EXIT; \
	git archive $(EARLIER) | tar -x -C "$$from"; \
	$(MAKE) --no-print-directory -C "$$from" images IMAGE_TAG=0.0.9; \
	rm -rf bin/earlier; mkdir -p bin/earlier/new; \
	mv "$$from/charts" "$$from/bin/images" bin/earlier/new; mv bin/earlier/new $@

e2e: $(filter-out livekit,$(PROGRAMS)) images ## Install the product on a real cluster of one node and make calls through it; needs root
	@.ci/install node
	@$(PACK); for folder in $(TEST_IMAGES); do pack $$folder e2e; done
	@if [[ "$(RUN)" == . || "$(RUN)" == *Upgrade* ]]; then \
	  $(MAKE) --no-print-directory --silent bin/earlier/$(EARLIER) \
	  || echo "THE EARLIER RELEASE IS MISSING, SO UPGRADES ARE NOT TESTED. If commit $(EARLIER) is missing: git fetch --unshallow"; fi
	@go test -tags=node -count=1 -timeout=90m -v -run="$(RUN)" ./e2e/node $(ARGS)
