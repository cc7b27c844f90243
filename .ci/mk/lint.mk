# Checks of the source text, and the quick proof of a change.

.PHONY: check lint wrap

check: ## Prove a change in two minutes with warm caches: unit tests and goldens, affected packages first, then lint and verify
	@.ci/check

# The targets of all recipes. Under bash -n a shell parses the lines of a recipe and executes none.
TARGETS = $(sort $(shell awk -F: '/^[a-z0-9-]+:.*\#\# / { print $$1 }' $(MAKEFILE_LIST)))
PARSE   = $(MAKE) --silent --always-make .SHELLFLAGS='-n -c' $(TARGETS)

lint: vet ## Run gofmt, go vet, staticcheck, actionlint and govulncheck; check module files and commit subjects
	@unformatted=$$(gofmt -l services clients e2e dashboards .ci); test -z "$$unformatted" || { echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	@$(call TOOL,staticcheck) -tags=node work
	@$(call TOOL,actionlint) -shellcheck= -pyflakes=
	@for m in $(MODULES) .ci/tools; do GOWORK=off go -C $$m mod tidy -diff || { echo "run make tidy"; exit 1; }; done
	@$(PARSE) RUN=. && $(PARSE) RUN=TestProduct/README
	@.ci/subjects
	@.ci/vulnerabilities

# Folders that are wrapped at 120 columns, generated files excepted. Code lines that remain too long need golines, or a hand.
WRAPPED := clients/go dashboards e2e services/api services/auth services/operator services/stunnerctl services/stunnerd .ci

wrap: ## Rewrap comments of Go files at 120 columns and count the lines that remain longer; CHECK=1 only counts
	@GOWORK=off go -C .ci/tools run ./wrap $(if $(CHECK),-n) $(addprefix ../../,$(WRAPPED))
