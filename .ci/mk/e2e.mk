# The services as images, and a real cluster that runs them.

IMAGE_REPOSITORY ?= ghcr.io/stunner-gateway
IMAGE_TAG        ?= $(shell awk '/newTag:/ { print $$2; exit }' kustomize/components/images/kustomization.yaml)
IMAGE_ARCHS      ?= $(shell go env GOARCH)

# pack FOLDER TAG: its program for each architecture, with the module's own versions, as the Dockerfile and ko build it; then the image of all.
PACK = mkdir -p bin/images; pack() { \
  local name=$${1\#\#*/} arch programs=(); \
  for arch in $(IMAGE_ARCHS); do \
    programs+=("$(CURDIR)/bin/linux-$$arch/$$name"); \
    CGO_ENABLED=0 GOOS=linux GOARCH=$$arch GOWORK=off go -C "$$1" build -trimpath -ldflags='-s -w' -o "$${programs[-1]}" .; \
  done; \
  GOWORK=off go -C .ci/tools run ./pack -ref "$(IMAGE_REPOSITORY)/$$name:$$2" -o "$(CURDIR)/bin/images/$$name.tar" "$${programs[@]}"; }

# What is packed: the services, and the echo peer of docs/examples/cluster.
IMAGES := $(SERVICES:bin/%=services/%) e2e/echo

# What only a cluster of tests needs.
TEST_IMAGES := e2e/internal/node/pause .ci/dns

# An earlier commit, to upgrade from: then the chart drew the credentials, and nothing belonged to the account of the operator.
EARLIER := 6808f04226a114861f4994949e46d105a93b8354

# Which tests of e2e run, as go test takes it, and what they are told: make e2e RUN=TestAutoscaling ARGS='-outage 10m'.
RUN  ?= .
ARGS ?=

.PHONY: images e2e

images: ## Pack the services and an echo peer into bin/images: OCI archives, each with its bill of materials in SPDX
	@$(PACK); for folder in $(IMAGES); do pack $$folder "$(IMAGE_TAG)"; done

# Its charts, and its images as it packs them itself, released as 0.0.9.
bin/earlier/$(EARLIER):
	@from=$$(mktemp -d); trap 'rm -rf "$$from"' EXIT; \
	git archive $(EARLIER) | tar -x -C "$$from"; \
	$(MAKE) --no-print-directory -C "$$from" images IMAGE_TAG=0.0.9; \
	rm -rf bin/earlier; mkdir -p bin/earlier/new; \
	mv "$$from/charts" "$$from/bin/images" bin/earlier/new; mv bin/earlier/new $@

e2e: $(PROGRAMS) images ## Install the product on a real cluster of one node and make calls through it; needs root
	@.ci/install node
	@$(PACK); for folder in $(TEST_IMAGES); do pack $$folder e2e; done
	$(if $(filter .,$(RUN))$(findstring Upgrade,$(RUN)),@$(MAKE) --no-print-directory --silent bin/earlier/$(EARLIER) \
	  || echo "THERE IS NOTHING TO UPGRADE FROM. Where commit $(EARLIER) is missing: git fetch --unshallow")
	@go test -tags=node -count=1 -timeout=90m -v -run="$(RUN)" ./e2e/node $(ARGS)
