# Every target that a person calls is in .ci/mk, by theme, with its sentence behind ##.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

MODULES  := $(patsubst %/go.mod,%,$(wildcard */go.mod services/*/go.mod))
PROGRAMS := $(notdir $(wildcard .ci/programs/*))

# The path of a pinned tool. It is built when the build cache does not have it.
TOOL = $(shell GOWORK=off go -C .ci/tools tool -n $(1))

include .ci/mk/*.mk

.PHONY: help
help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
