# Leat. `make help` lists what can be made.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES  := gen libs services cmd tests bench
SERVICES := broker controller coordinator gateway
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  := -X github.com/leat-io/leat/libs/version.Version=$(VERSION)
TOOLS    := $(CURDIR)/.cache/tools
# Flags for the unit and cluster tests, for example TESTFLAGS='-run TestName -v'.
TESTFLAGS ?=
# How long `make soak` goes on with faults.
SOAK ?= 5m
# How often `make bench-failover` kills the leader.
KILLS ?= 200
# What `make faults` runs: for DURATION (90s), from SEED (a fresh one); with FULL=1 the run of 30
# minutes that must not miss any fault. FAULTSFLAGS go to the test, for example -small or -rate=500.
FULL ?=
FAULTSFLAGS ?=
FAULTS := $(CURDIR)/.cache/faults
# Which entries `make ledger` tries; none: all.
LEDGER ?=
# What `make simulate` runs: SEEDS walks, or walks for DURATION, from SEED on. SEED alone
# replays one walk and tells its story.
SEEDS ?=
SEED ?=
DURATION ?=
SIMULATE := $(if $(SEED),-sim.seed=$(SEED)) $(if $(SEEDS),-sim.seeds=$(SEEDS)) $(if $(DURATION),-sim.duration=$(DURATION)) $(if $(SEED)$(SEEDS)$(DURATION),,-sim.seeds=5000)

.PHONY: help
help: ## List what can be made.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build leat and the four services into bin/.
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/leat $(foreach s,$(SERVICES),./services/$(s)/cmd/$(s))

.PHONY: run
run: build ## Build, then run a whole mesh on this machine until Ctrl-C.
	@exec bin/leat dev

.PHONY: test
test: build test-unit test-cluster ## Run every test that needs only Go and make.

.PHONY: test-unit
test-unit: ## Run the tests of the libraries, services and command, with the race detector.
	@for m in gen libs services cmd; do \
		echo "== $$m"; (cd $$m && go vet ./... && go test -race -timeout 10m $(TESTFLAGS) ./...); \
	done
	@echo "== libs/commitlog, cut at every step (with the race detector at every fifth)"
	cd libs && go test -timeout 10m $(TESTFLAGS) ./commitlog

.PHONY: test-cluster
test-cluster: build $(TOOLS)/grpcurl $(TOOLS)/kustomize ## Run the tests of the house rules and of whole meshes, against bin/.
	cd tests && go vet ./... && LEAT_TOOLS=$(TOOLS) go test -count=1 -timeout 15m $(TESTFLAGS) ./...

.PHONY: soak
soak: build ## Kill, stop and restart processes of a loaded mesh at random, for SOAK=5m.
	cd tests && go test -count=1 -timeout 2h -run '^TestSoak$$' -v ./cluster -soak $(SOAK) -soak.seed 0 $(TESTFLAGS)

.PHONY: simulate
simulate: ## Simulate meshes under faults, SEEDS=n walks (5,000) or for DURATION=30m, from SEED=s on; SEED alone replays one.
	@cd tests && go test -count=1 -timeout 0 -run '^TestSimulation$$' -v ./simulation $(SIMULATE) $(TESTFLAGS) | grep -vE '^(=== RUN|--- |PASS|FAIL|ok )'

.PHONY: ledger
ledger: ## Break the code as tests/faults/ledger.md says, entry by entry, and see that each is caught.
	@tests/faults/ledger.sh $(LEDGER)

.PHONY: build-faults
build-faults: ## Build everything with failpoints, for make faults, into .cache/faults/bin.
	@mkdir -p $(FAULTS)/bin
	go build -tags failpoints -ldflags '$(LDFLAGS)' -o $(FAULTS)/bin/ ./cmd/leat $(foreach s,$(SERVICES),./services/$(s)/cmd/$(s))

.PHONY: faults
faults: build-faults ## Strike a loaded mesh of 16 processes by role and check what everybody was told: DURATION=90s SEED=0 FULL=1.
	cd libs && go test -count=1 -tags failpoints ./failpoint
	cd tests && LEAT_BIN=$(FAULTS)/bin go test -count=1 -timeout 3h -run '^TestFaults$$' -v ./faults \
		-seed $(or $(SEED),0) -duration $(or $(DURATION),$(if $(FULL),30m,90s)) $(if $(FULL),-full) -report $(FAULTS)/report $(FAULTSFLAGS)

.PHONY: test-replication
test-replication: build ## Run the tests of replication with their full counts of faults (about three quarters of an hour).
	cd tests && go test -count=1 -timeout 2h -v ./replication -full -seed 0 $(TESTFLAGS)

.PHONY: test-groups
test-groups: build ## Run the tests of consumer groups at full length and with a thousand members (about three quarters of an hour).
	cd tests && go test -count=1 -timeout 2h -v ./groups -full -seed 0 $(TESTFLAGS)

.PHONY: bench-failover
bench-failover: build ## Kill a partition's leader KILLS=200 times and report the gaps in acknowledgements.
	cd tests && go test -count=1 -timeout 1h -v -run '^TestFailoverTime$$' ./replication -failovers $(KILLS) $(TESTFLAGS)

.PHONY: interop
interop: ## Cross-check record batches with franz-go, an independent implementation.
	cd tests/interop && GOWORK=off go vet ./... && GOWORK=off go test -count=1 $(TESTFLAGS) ./...

.PHONY: bench
bench: build ## Run the benchmarks; figures to keep go to bench/RESULTS.md.
	cd bench && go test -run '^$$' -bench . -benchtime 2s ./...

.PHONY: generate
generate: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## Generate gen/ from proto/, and the documentation that comes from code.
	PATH="$(TOOLS):$$PATH" buf generate
	cd libs && go generate ./...
	cd cmd && go generate ./...

.PHONY: check-generate
check-generate: generate ## Fail if what is generated is not up to date.
	@git diff --exit-code --stat -- gen docs || { echo "generated files are out of date: run 'make generate' and commit the result" >&2; exit 1; }
	@test -z "$$(git ls-files --others --exclude-standard -- gen docs)" || { echo "generated files are not in git: $$(git ls-files --others --exclude-standard -- gen docs)" >&2; exit 1; }

.PHONY: check-modules
check-modules: ## Fail if a module does not build by itself, outside the workspace.
	@for m in $(MODULES); do echo "== $$m"; (cd $$m && GOWORK=off go build ./...); done

.PHONY: lint
lint: $(TOOLS)/buf $(TOOLS)/staticcheck $(TOOLS)/gofumpt ## Check format, protos and the usual mistakes.
	@bad=$$(git ls-files '*.go' | grep -v '^gen/go/' | xargs $(TOOLS)/gofumpt -l); \
		test -z "$$bad" || { echo "not formatted; run 'make format': $$bad" >&2; exit 1; }
	$(TOOLS)/buf lint
	$(TOOLS)/buf format --diff --exit-code
	@for m in libs services cmd tests bench; do echo "== $$m"; (cd $$m && $(TOOLS)/staticcheck ./...); done

.PHONY: format
format: $(TOOLS)/buf $(TOOLS)/gofumpt ## Format Go and protos.
	git ls-files '*.go' | grep -v '^gen/go/' | xargs $(TOOLS)/gofumpt -w
	$(TOOLS)/buf format -w

.PHONY: tidy
tidy: ## Tidy every module.
	@for m in $(MODULES); do echo "== $$m"; (cd $$m && GOWORK=off go mod tidy); done

.PHONY: image
image: ## Build one container image for each service; needs docker.
	@for s in $(SERVICES); do docker build --build-arg SERVICE=$$s --build-arg VERSION=$(VERSION) -t leat/$$s:$(VERSION) -f deploy/Dockerfile .; done

.PHONY: clean
clean: ## Remove what was built.
	rm -rf bin .cache

# The tools are pinned in modules of their own under tools/, outside the workspace.
$(TOOLS)/buf: tools/buf/go.mod
	cd tools/buf && GOWORK=off go build -o $@ github.com/bufbuild/buf/cmd/buf
$(TOOLS)/protoc-gen-go: tools/gen/go.mod
	cd tools/gen && GOWORK=off go build -o $@ google.golang.org/protobuf/cmd/protoc-gen-go
$(TOOLS)/protoc-gen-go-grpc: tools/gen/go.mod
	cd tools/gen && GOWORK=off go build -o $@ google.golang.org/grpc/cmd/protoc-gen-go-grpc
$(TOOLS)/staticcheck: tools/lint/go.mod
	cd tools/lint && GOWORK=off go build -o $@ honnef.co/go/tools/cmd/staticcheck
$(TOOLS)/gofumpt: tools/lint/go.mod
	cd tools/lint && GOWORK=off go build -o $@ mvdan.cc/gofumpt
$(TOOLS)/grpcurl: tools/grpcurl/go.mod
	cd tools/grpcurl && GOWORK=off go build -o $@ github.com/fullstorydev/grpcurl/cmd/grpcurl
$(TOOLS)/kustomize: tools/kustomize/go.mod
	cd tools/kustomize && GOWORK=off go build -o $@ sigs.k8s.io/kustomize/kustomize/v5
