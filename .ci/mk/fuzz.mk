# Fuzzing. A failing input is written to testdata/fuzz next to the test: commit it with the fix, and go test runs it from then on.

FUZZTIME ?= 20s

# DIRECTORY:TARGET of every fuzz target.
FUZZ_TARGETS = $(shell grep -roE --include='*_test.go' --exclude-dir=node_modules '^func Fuzz\w+' $(MODULES) | sed -E 's|/[^/]*:func |:|' | sort)

# Targets run one after the other, because each uses all processors, and without the race detector, which reduces the number of executions.
# tally reports the result of each.
FUZZING = for target in $(FUZZ_TARGETS); do \
  go test -json -vet=off -run='^$$' -fuzz="^$${target\#*:}$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=100x "./$${target%:*}" || :; done

FUZZ_SUITE = fuzz=$(words $(FUZZ_TARGETS))

.PHONY: fuzz

fuzz: ## Fuzz every target for FUZZTIME, 20s unless told
	@$(FUZZING) | $(TALLY) $(FUZZ_SUITE)
