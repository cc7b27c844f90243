# Kubernetes for tests: a control plane of the release that .ci/kube/go.mod pins, built from Go modules into the user's cache.

.PHONY: kube

kube: ## Build the Kubernetes that tests run on, unless it is built; print its folder
	@.ci/kube/build
