# Proofs. A suite is a service, or a folder of e2e; each of SUITES must have run at least one test.

SUITES := tools/pack tools/requirements tools/tally dashboards $(filter services/%,$(MODULES)) $(addprefix e2e/,crd cluster kube tenant floods auth scale charts scenario faults abuse interop turnprobe browser modules monitoring tilt)
TALLY   = GOWORK=off go -C .ci/tools run ./tally

# Vetting is done by vet, once: go test would do it over again for each way of compiling, dependencies included.
GO_TEST := go test -json -vet=off -shuffle=on -timeout=20m

.PHONY: test provisions alone vet suites

test: provisions alone vet verify suites ## Prove the product on this machine; installs Debian and npm packages that are missing

# Packages are fetched and unpacked while processors are busy with Kubernetes.
provisions:
	@.ci/install & packages=$$!; s=0; $(MAKE) --no-print-directory kube || s=1; wait $$packages || s=1; exit $$s

# A module must build without its neighbours' version choices, as it does when somebody imports it.
alone:
	@for m in $(MODULES); do echo "build $$m on its own"; GOWORK=off go -C $$m build ./...; done

vet:
	go vet -tags=node work

# The folders of e2e run one after the other: they measure time and loss, and must not disturb each other. The race detector looks at the
# product, where the product is; what e2e drives are programs as they are shipped. Nothing stops the rest from running.
suites: FUZZTIME = 5s
suites:
	@{ s=0; \
	  GOWORK=off go -C .ci/tools test -json ./... || s=1; \
	  $(GO_TEST) -race $(patsubst %,./%/...,$(filter services/%,$(MODULES))) || s=1; \
	  $(GO_TEST) -p 1 $(patsubst %,./%/...,$(filter-out services/%,$(MODULES))) || s=1; \
	  $(FUZZING); \
	  exit $$s; } | $(TALLY) $(SUITES) $(FUZZ_SUITE)
