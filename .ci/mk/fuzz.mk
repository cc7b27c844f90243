# Fuzzing. What is found is written beside the test, under testdata/fuzz: commit it with the repair, and go test tries it from then on.

FUZZTIME ?= 20s

# DIRECTORY:TARGET of every target there is. A list that is kept by hand would forget one.
FUZZ_TARGETS = $(shell grep -roE --include='*_test.go' --exclude-dir=node_modules '^func Fuzz\w+' $(MODULES) | sed -E 's|/[^/]*:func |:|' | sort)

# One after the other, because each uses all processors, and without the race detector, which would leave a fraction of the executions.
# What became of each is for tally to say.
FUZZING = for target in $(FUZZ_TARGETS); do \
  go test -json -vet=off -run='^$$' -fuzz="^$${target\#*:}$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=100x "./$${target%:*}" || :; done

FUZZ_SUITE = fuzz=$(words $(FUZZ_TARGETS))

.PHONY: fuzz

fuzz: ## Fuzz every target for FUZZTIME, 20s unless told
	@$(FUZZING) | $(TALLY) $(FUZZ_SUITE)
