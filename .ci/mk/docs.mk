# The site of the documentation: docs and a few other pages, with a search that needs no server.

.PHONY: docs

docs: site/node_modules/.package-lock.json ## Build the site of the documentation in bin/site; fail if a link or an anchor is dead, or the search misses an answer
	@npm --prefix site run --silent build
	@node site/check.mjs bin/site

# npm writes its own lock file when the packages are current.
%/node_modules/.package-lock.json: %/package-lock.json
	@command -v npm >/dev/null || { echo "npm is not installed: run sudo apt-get install --yes nodejs npm" >&2; exit 1; }
	@npm --prefix $* ci --no-audit --no-fund --loglevel=error
	@touch $@
