# Figures of the control plane, of call set-up and of the session journal, for docs/performance. They depend on the machine: compare figures of one run only.

BENCHTIME ?= 1000x

.PHONY: bench bench-media

bench: ## Print the cost of changes and starts in the control plane, in memory and on a real API server, the duration of call set-up, the rate of allocations with and without the session journal, and calls during floods on stunnerd and coturn
	@go test -run='^$$' -bench='^BenchmarkCallSetup$$' -benchtime=$(BENCHTIME) ./e2e/faults
	@go test -run='^$$' -bench='^BenchmarkJournal$$' -benchtime=100x ./e2e/faults
	@go test -run='^$$' -bench='^BenchmarkChange$$' -benchtime=$(BENCHTIME) ./services/operator/internal/translate
	@go test -run='^$$' -bench='^BenchmarkWideChange$$' -benchtime=100x ./services/operator/internal/kube
	@go test -run='^$$' -bench='^BenchmarkGateways$$' -benchtime=$(BENCHTIME) ./services/operator/internal/kube
	@go test -run='^$$' -bench='^BenchmarkEndpoint$$' -benchtime=$(BENCHTIME) ./services/operator/internal/kube
	@go test -run='^$$' -bench='^BenchmarkWide$$' -benchtime=100x ./services/stunnerd/internal/follower
	@go test -run='^$$' -bench='^BenchmarkStart$$' -benchtime=1x ./services/operator/internal/translate
	@go test -run='^$$' -bench='^BenchmarkFolder$$' -benchtime=10x ./services/operator/internal/decode
	@go test -v -count=1 -timeout=30m ./e2e/scale -run=TestGateways -gateways=1000
	@go test -v -count=1 -timeout=30m ./e2e/scale -run=TestStrictReaders -readers=1000
	@go test -v -count=1 -timeout=60m ./e2e/scale -run=TestStrictReaders/keys -readers=5000
	@go test -v -count=1 -timeout=30m ./e2e/abuse -run=TestNoisyNeighbour -coturn

# Other clients, rows, servers or builds: make bench-media ARGS='-clients 5000 -rows "up|down" -baseline ../before/bin/stunnerd'.
bench-media: ## Print the cost of relayed media on stunnerd, coturn and bare pion/turn, side by side; needs root and two cores
	@mkdir -p bin
	@go test -v -count=1 -timeout=60m ./e2e/media -run=TestMedia -rounds=5 -tries=3 -duration=700ms -allocations=10000 -output="$(CURDIR)/bin/media" $(ARGS)
