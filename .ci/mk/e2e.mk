# The services as images.

IMAGE_REPOSITORY ?= ghcr.io/stunner-gateway
IMAGE_TAG        ?= dev
IMAGE_ARCHS      ?= $(shell go env GOARCH)

# One program for each architecture, from the module's own versions, as the Dockerfile and ko build them; then the image of all of them.
PACK = set -e; name=$(notdir $(1)); programs=; \
  for arch in $(IMAGE_ARCHS); do \
    CGO_ENABLED=0 GOOS=linux GOARCH=$$arch GOWORK=off go -C $(1) build -trimpath -ldflags='-s -w' -o $(CURDIR)/bin/linux-$$arch/$$name .; \
    programs+=" $(CURDIR)/bin/linux-$$arch/$$name"; done; \
  GOWORK=off go -C .ci/tools run ./pack -ref $(IMAGE_REPOSITORY)/$$name:$(IMAGE_TAG) -o $(CURDIR)/bin/images/$$name.tar $$programs

.PHONY: images

images: ## Pack the services into bin/images: OCI archives, each with its bill of materials in SPDX
	@mkdir -p bin/images
	@for service in $(SERVICES:bin/%=services/%); do $(call PACK,$$service); done
