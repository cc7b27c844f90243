# Kubernetes for tests, of the release that .ci/kube/go.mod pins, built from Go modules into the user's cache.

.PHONY: kube node

kube: ## Build the control plane that tests run on, unless it is built; print its folder
	@.ci/kube/build

node: ## Build what a cluster with a node needs beside it, unless it is built; print its folder
	@.ci/kube/build node
