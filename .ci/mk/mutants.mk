# Mutants: changes that break a rule, each with the test that must then fail.

.PHONY: mutants

mutants: ## Break the rules in .ci/tools/mutants/table.go one by one, in copies, and require that the test of each fails; RUN selects rules
	@GOWORK=off go -C .ci/tools run ./mutants -run='$(RUN)' ../..
