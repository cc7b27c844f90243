# Tests. A suite is a service or a folder of e2e; each of the suites that a target names must run at least one test.

UNIT_MODULES := $(filter services/% clients/%,$(MODULES))
UNIT_SUITES  := tools/bill tools/mutants tools/pack tools/release tools/requirements tools/scripts tools/tally tools/wrap $(UNIT_MODULES)
TALLY   = GOWORK=off go -C .ci/tools run ./tally

# The target vet runs go vet once; go test would repeat it for each build mode, including dependencies.
GO_TEST := go test -json -vet=off -timeout=30m

# go test repeats the results of packages whose inputs have not changed. e2e and .ci/tools must not use them: e2e runs
# binaries that go test does not know, and .ci/tools reads files of other modules, whose changes go test does not
# notice. The services use them. FRESH=1 runs all tests of the services, in random order, as CI does. With FRESH=1,
# TestPayloadsAreForwardedUnchanged of offload sends more sizes.
UNCACHED := -count=1 -shuffle=on
FRESH    ?=

# Pure packages with long tests: neither they nor their tests start goroutines. The race detector multiplies their time
# by five; it is on for their callers.
PURE := $(addprefix ./services/,api/config operator/internal/decode operator/internal/translate stunnerd/internal/cluster)

# Suites that need one machine only, and have no target of their own: make e2e runs e2e/node, make largest e2e/largest,
# and make existing e2e/existing.
E2E := dashboards $(filter-out e2e/node e2e/largest e2e/existing,$(patsubst %/,%,$(wildcard e2e/*/)))

# Suites that measure neither time nor loss, the longest first.
UNTIMED := $(addprefix e2e/,kube doctor diagnose charts crd cluster modules docs tilt) dashboards

# Suites that make a few calls and mostly wait.
WAITING := $(addprefix e2e/,interop clients usage balancer turnprobe turncat stunnerctl compat scenario monitoring demo echo internal)

# Suites that measure time or loss under load.
TIMED := $(filter-out $(UNTIMED) $(WAITING),$(E2E))

# The part of the suites of e2e that test-e2e runs: make test-e2e SHARD=2/3 runs each third suite from the second one.
SHARD ?= 1/1
SHARE  = $(shell printf '%s\n' $(UNTIMED) $(WAITING) $(TIMED) | awk -v shard=$(SHARD) 'BEGIN { split(shard, of, "/") } NR % of[2] == of[1] % of[2]')

.PHONY: test test-services test-e2e packages provisions alone vet suites

test: provisions alone vet verify suites ## Run every suite that needs one machine only; installs missing Debian and npm packages

test-services: packages ## Run the tests of the services and tools with the race detector, and fuzz every target; a part of make test
	@{ s=0; $(UNIT_TESTS) $(FUZZING); exit $$s; } | $(TALLY) $(UNIT_SUITES) $(FUZZ_SUITE)

test-e2e: provisions ## Run the suites that need one machine only, or a part of them (SHARD=1/3); a part of make test
	@[[ "$(SHARD)" =~ ^([1-9])/([1-9])$$ ]] && ((BASH_REMATCH[1] <= BASH_REMATCH[2])) || { echo "SHARD is $(SHARD): use a part and a number of parts, such as 1/3" >&2; exit 1; }
	@{ s=0; $(WAITS) $(MEASURES) exit $$s; } | $(TALLY) $(SHARE)

# Debian and npm packages.
packages:
	@.ci/install

# Packages are downloaded while Kubernetes and the other programs compile.
provisions:
	@.ci/install & packages=$$!; s=0; $(MAKE) --no-print-directory kube helm livekit || s=1; wait $$packages || s=1; exit $$s

# Each module must build without the workspace, as it does when another module imports it.
alone:
	@for m in $(MODULES); do echo "build $$m on its own"; GOWORK=off go -C $$m build ./...; done

vet:
	go vet -tags=node work

SERVICE_FOLDERS = $(patsubst %,./%/...,$(UNIT_MODULES))

# Packages of some folders without those of others, the last first, because the last of the services take longest.
WITHOUT = $$(comm -23 <(go list $(1) | sort) <(go list $(2) | sort) | tac)
RACED   = $(call WITHOUT,$(SERVICE_FOLDERS),$(PURE))

# The race detector is on for the services; three of their packages run at a time, because many tests wait. Fuzzing is
# counted in executions, so that a slow machine proves as much as a fast one. A failing suite does not stop the others.
suites test-services: FUZZTIME = 10000x
UNIT_TESTS = GOWORK=off go -C .ci/tools test -json $(UNCACHED) ./... || s=1; \
  $(GO_TEST) -race -p 3 $(if $(FRESH),$(UNCACHED)) $(RACED) || s=1; \
  $(GO_TEST) $(if $(FRESH),$(UNCACHED)) $(PURE) || s=1;

# e2e tests the binaries as released: several packages at a time that do not disturb each other, and one after the other
# those that measure time or loss under load. $(call IN_SHARE,SUITES,NUMBER) runs the suites that are in the share.
WAITS     = $(call IN_SHARE,$(UNTIMED),3) $(call IN_SHARE,$(WAITING),3)
MEASURES  = $(call IN_SHARE,$(TIMED),1)
IN_SHARE  = $(if $(filter $(1),$(SHARE)),$(GO_TEST) $(UNCACHED) -p $(2) $(patsubst %,./%/...,$(filter $(1),$(SHARE))) || s=1;)

# Beside suites that wait, with the lowest priority, run what needs processors only: the compiler, for the tests that follow, and fuzzing. The events
# of fuzzing follow when it has ended, because those of two programs could mix in one pipe.
COMPILING = go list -export -test $(patsubst %,./%/...,$(TIMED)) || :; go list -export -test -race $(RACED) || :;
BESIDE    = renice -n 19 $$BASHPID >/dev/null; { $(COMPILING) } >/dev/null; $(FUZZING);

suites: override SHARD = 1/1
suites:
	@mkdir -p bin
	@{ s=0; { $(BESIDE) } >bin/fuzz.json & beside=$$!; $(WAITS) wait $$beside; cat bin/fuzz.json; \
	  $(UNIT_TESTS) $(MEASURES) exit $$s; } | $(TALLY) $(UNIT_SUITES) $(SHARE) $(FUZZ_SUITE)

# One shape: make shapes ARGS='-shape folder,host'. One behaviour: ARGS='-only IcetestPasses'.
.PHONY: shapes

shapes: kube ## Test all behaviours in shapes of the product that have each pair of values of two factors, and print the matrix; make test runs a dozen of them; needs root
	@.ci/install
	@go test -v -count=1 -timeout=80m ./e2e/shapes -all $(ARGS)

# Objects of one kind, for less than a minute: make largest ARGS="-rows 'StaticService' -for 20s".
.PHONY: largest

largest: kube ## Test the operator with the largest objects that the API server admits, and other tenants beside them; needs root
	@go test -v -count=1 -timeout=60m ./e2e/largest $(ARGS)

# Some pairs of agents: make moves ARGS='-rows Janus'.
.PHONY: moves

moves: ## Print what pairs of ICE agents do when the pod of a call drains and when it is lost; make test runs a few of them; needs root
	@.ci/install
	@go test -v -count=1 -timeout=60m ./e2e/forward -run=TestMoves -all $(ARGS)

# The suite is a Go module. To build it takes minutes.
.PHONY: existing

existing: kube ## Test the operator with the test suite of the existing operator
	@go test -v -count=1 -timeout=60m ./e2e/existing $(ARGS)

# A test that depends on the order of two goroutines passes nearly always on an idle machine.
ROUNDS ?= 5

.PHONY: stress

stress: ## Run the tests of the services repeatedly (ROUNDS), with four packages at a time for each processor, until one fails
	@for n in $$(seq $(ROUNDS)); do echo "round $$n of $(ROUNDS)"; \
	  $(GO_TEST) -race -p $$((4 * $$(nproc))) $(UNCACHED) $(call WITHOUT,$(SERVICE_FOLDERS),$(PURE)) | $(TALLY); done
