# Programs of others for tests, of the releases that .ci/programs and .ci/kube/go.mod pin, built from Go modules into the user's cache.

.PHONY: $(PROGRAMS)

kube:       ## Build the control plane that tests run on, unless it is built; print its folder
node:       ## Build what a cluster with nodes needs beside it
helm:       ## Build Helm 4
helm3:      ## Build Helm 3
keda:       ## Build KEDA, as images
prometheus: ## Build a Prometheus, as an image

$(PROGRAMS):
	@.ci/build $@
