# Programs: the services, and the programs that test them from outside.

SERVICES := $(patsubst services/%/main.go,bin/%,$(wildcard services/*/main.go))
DRIVERS  := $(patsubst e2e/%/main.go,bin/%,$(wildcard e2e/*/main.go))

.PHONY: build demo clean $(SERVICES) $(DRIVERS)

build: $(SERVICES) $(DRIVERS) ## Compile the programs into bin/

$(SERVICES):
	go build -o $@ ./services/$(@F)

$(DRIVERS):
	go build -o $@ ./e2e/$(@F)

demo: build ## Run everything on this host and make one relayed call; DEMO_EXIT=1 ends after the verdict
	@exec bin/demo

clean: ## Remove bin/
	rm -rf bin
