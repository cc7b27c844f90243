# Client libraries of the auth service. clients/go is a module of the workspace.

TYPESCRIPT := clients/typescript
# openapi-typescript and TypeScript, in the versions of the lock file.
NODE_TOOLS := $(TYPESCRIPT)/node_modules/.bin

.PHONY: clients

clients: $(TYPESCRIPT)/node_modules/.package-lock.json ## Compile the TypeScript client and pack it into bin/clients, as npm publishes it
	@rm -rf bin/clients $(TYPESCRIPT)/dist; mkdir -p bin/clients
	@$(NODE_TOOLS)/tsc --project $(TYPESCRIPT)
	@install -m 644 LICENSE $(TYPESCRIPT)/dist
	@cd $(TYPESCRIPT) && npm pack --silent --pack-destination "$(CURDIR)/bin/clients"
