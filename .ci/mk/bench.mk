# Figures of the control plane and of call set-up, for docs/performance.md. They depend on the machine: compare what one run prints.

BENCHTIME ?= 1000x

.PHONY: bench

bench: ## Print what changes and starts cost the control plane, in memory and with 1,000 Gateways and 5,000 dataplanes on a real API server, how long call set-up takes, and calls beside noisy neighbours on stunnerd and coturn
	@go test -run='^$$' -bench='^BenchmarkCallSetup$$' -benchtime=$(BENCHTIME) ./e2e/faults
	@go test -run='^$$' -bench='^BenchmarkChange$$' -benchtime=$(BENCHTIME) ./services/operator/internal/translate
	@go test -run='^$$' -bench='^BenchmarkStart$$' -benchtime=1x ./services/operator/internal/translate
	@go test -run='^$$' -bench='^BenchmarkFolder$$' -benchtime=10x ./services/operator/internal/decode
	@go test -v -count=1 -timeout=30m ./e2e/scale -run=TestGateways -gateways=1000
	@go test -v -count=1 -timeout=30m ./e2e/scale -run=TestStrictReaders -readers=1000
	@go test -v -count=1 -timeout=60m ./e2e/scale -run=TestStrictReaders/keys -readers=5000
	@go test -v -count=1 -timeout=30m ./e2e/abuse -run=TestNoisyNeighbour -coturn
