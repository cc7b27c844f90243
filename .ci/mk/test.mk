# Tests. A suite is a service or a folder of e2e; each of SUITES must run at least one test.

SUITES := tools/pack tools/requirements tools/tally tools/wrap dashboards $(filter services/%,$(MODULES)) $(addprefix e2e/,compat crd cluster diagnose kube tenant floods auth scale charts scenario faults forward abuse media offload interop stunnerctl turncat turnprobe browser modules monitoring tilt)
TALLY   = GOWORK=off go -C .ci/tools run ./tally

# The target vet runs go vet once; go test would repeat it for each build mode, including dependencies.
GO_TEST := go test -json -vet=off -timeout=20m

# go test repeats the results of packages whose inputs have not changed. e2e must not use them, because it runs binaries that go test does not
# know. The services use them; FRESH=1 runs all of their tests, in random order, as CI does. TestContent of offload
# sends more sizes with it.
UNCACHED := -count=1 -shuffle=on
FRESH    ?=

# Pure packages with long tests: neither they nor their tests start goroutines. The race detector multiplies their time
# by five; it is on for their callers.
PURE := $(addprefix ./services/,api/config operator/internal/decode operator/internal/translate stunnerd/internal/cluster)

# Packages of e2e and dashboards that measure neither time nor loss, the longest first.
UNTIMED := $(addprefix ./e2e/,kube charts crd cluster modules docs tilt) ./dashboards/...

# Packages of e2e that make a few calls and mostly wait.
WAITING := $(addprefix ./e2e/,interop turnprobe/... scenario monitoring demo echo)

.PHONY: test provisions alone vet suites

test: provisions alone vet verify suites ## Run every suite that needs one machine only; installs missing Debian and npm packages

# Packages are downloaded while Kubernetes compiles.
provisions:
	@.ci/install & packages=$$!; s=0; $(MAKE) --no-print-directory kube || s=1; wait $$packages || s=1; exit $$s

# Each module must build without the workspace, as it does when another module imports it.
alone:
	@for m in $(MODULES); do echo "build $$m on its own"; GOWORK=off go -C $$m build ./...; done

vet:
	go vet -tags=node work

SERVICE_FOLDERS = $(patsubst %,./%/...,$(filter services/%,$(MODULES)))
OTHER_FOLDERS   = $(patsubst %,./%/...,$(filter-out services/%,$(MODULES)))

# Packages of some folders without those of others, the last first, because the last of the services take longest.
WITHOUT         = $$(comm -23 <(go list $(1) | sort) <(go list $(2) | sort) | tac)

# The race detector is on for the services; three of their packages run at a time, because many tests wait. e2e tests the
# binaries as released: several packages at a time that do not disturb each other, and one after the other those that
# measure time or loss under load. Fuzzing is counted in executions, so that a slow machine proves as much as a fast one.
# A failing suite does not stop the others.
suites: FUZZTIME = 10000x
suites:
	@{ s=0; \
	  GOWORK=off go -C .ci/tools test -json ./... || s=1; \
	  $(GO_TEST) -race -p 3 $(if $(FRESH),$(UNCACHED)) $(call WITHOUT,$(SERVICE_FOLDERS),$(PURE)) || s=1; \
	  $(GO_TEST) $(if $(FRESH),$(UNCACHED)) $(PURE) || s=1; \
	  $(GO_TEST) $(UNCACHED) -p 2 $(UNTIMED) || s=1; \
	  $(GO_TEST) $(UNCACHED) -p 3 $(WAITING) || s=1; \
	  $(GO_TEST) $(UNCACHED) -p 1 $(call WITHOUT,$(OTHER_FOLDERS),$(UNTIMED) $(WAITING)) || s=1; \
	  $(FUZZING); \
	  exit $$s; } | $(TALLY) $(SUITES) $(FUZZ_SUITE)

# A test that depends on the order of two goroutines passes nearly always on an idle machine.
ROUNDS ?= 5

.PHONY: stress

stress: ## Run the tests of the services repeatedly (ROUNDS), with four packages at a time for each processor, until one fails
	@for n in $$(seq $(ROUNDS)); do echo "round $$n of $(ROUNDS)"; \
	  $(GO_TEST) -race -p $$((4 * $$(nproc))) $(UNCACHED) $(call WITHOUT,$(SERVICE_FOLDERS),$(PURE)) | $(TALLY); done
