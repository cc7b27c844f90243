# The services as images.

IMAGE_REPOSITORY ?= ghcr.io/stunner-gateway
IMAGE_TAG        ?= dev
IMAGE_ARCHS      ?= $(shell go env GOARCH)

# pack FOLDER: its program for each architecture, with the module's own versions, as the Dockerfile and ko build it; then the image of all.
PACK = pack() { \
  local name=$${1\#\#*/} arch programs=(); \
  for arch in $(IMAGE_ARCHS); do \
    programs+=("$(CURDIR)/bin/linux-$$arch/$$name"); \
    CGO_ENABLED=0 GOOS=linux GOARCH=$$arch GOWORK=off go -C "$$1" build -trimpath -ldflags='-s -w' -o "$${programs[-1]}" .; \
  done; \
  GOWORK=off go -C .ci/tools run ./pack -ref "$(IMAGE_REPOSITORY)/$$name:$(IMAGE_TAG)" -o "$(CURDIR)/bin/images/$$name.tar" "$${programs[@]}"; }

.PHONY: images

images: ## Pack the services into bin/images: OCI archives, each with its bill of materials in SPDX
	@mkdir -p bin/images; $(PACK); for service in $(SERVICES:bin/%=services/%); do pack $$service; done
