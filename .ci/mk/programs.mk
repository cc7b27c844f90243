# Third-party programs for tests, in the releases that .ci/programs and .ci/kube/go.mod pin, built from Go modules into the user's cache.

.PHONY: programs $(PROGRAMS)

programs:   $(PROGRAMS) ## Build all of the following

kube:       ## Build the Kubernetes control plane for tests, unless it exists; print its folder
node:       ## Build the programs of a cluster with nodes
helm:       ## Build Helm 4
helm3:      ## Build Helm 3
keda:       ## Build KEDA, as images
prometheus: ## Build a Prometheus, as an image
livekit:    ## Build a LiveKit server

$(PROGRAMS):
	@.ci/build $@
