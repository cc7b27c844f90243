# Public targets are in .ci/mk, by topic, with their descriptions after ##.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

MODULES  := $(patsubst %/go.mod,%,$(wildcard */go.mod services/*/go.mod clients/*/go.mod))
PROGRAMS := $(notdir $(wildcard .ci/programs/*))

# The path of a pinned tool, which is built if it is not in the build cache.
TOOL = $(shell GOWORK=off go -C .ci/tools tool -n $(1))

include .ci/mk/*.mk

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
