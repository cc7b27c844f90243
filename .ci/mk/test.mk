# Tests. A suite is a service or a folder of e2e; each of SUITES must run at least one test.

SUITES := tools/pack tools/requirements tools/tally tools/wrap dashboards $(filter services/%,$(MODULES)) $(addprefix e2e/,compat crd cluster kube tenant floods auth scale charts scenario faults abuse interop turnprobe browser modules monitoring tilt)
TALLY   = GOWORK=off go -C .ci/tools run ./tally

# The target vet runs go vet once; go test would repeat it for each build mode, including dependencies.
GO_TEST := go test -json -vet=off -timeout=20m

# go test repeats the results of packages whose inputs have not changed. e2e must not use them, because it runs binaries that go test does not
# know. The services use them; FRESH=1 runs all of their tests, in random order, as CI does.
UNCACHED := -count=1 -shuffle=on
FRESH    ?=

# A pure package with long tests and no goroutines. The race detector multiplies their time by five; it is on for the callers of the package.
PURE := translate

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

# The folders of e2e run one after the other, because they measure time and loss. The race detector is on for the services; e2e tests the
# binaries as released. A failing suite does not stop the others.
suites: FUZZTIME = 5s
suites:
	@{ s=0; \
	  GOWORK=off go -C .ci/tools test -json ./... || s=1; \
	  $(GO_TEST) -race $(if $(FRESH),$(UNCACHED)) $$(go list $(patsubst %,./%/...,$(filter services/%,$(MODULES))) | grep -v '/$(PURE)$$') || s=1; \
	  $(GO_TEST) $(if $(FRESH),$(UNCACHED)) ./services/operator/internal/$(PURE) || s=1; \
	  $(GO_TEST) $(UNCACHED) -p 1 $(patsubst %,./%/...,$(filter-out services/%,$(MODULES))) || s=1; \
	  $(FUZZING); \
	  exit $$s; } | $(TALLY) $(SUITES) $(FUZZ_SUITE)
