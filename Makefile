# `make check` is the one entry: everything that CI holds.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := build
GO ?= go
# Packages whose tests start processes and mounts, without the race detector.
CLUSTER_PACKAGES := ./internal/clustertest/...
# The unit tests that take longest come first, so that none of them ends alone.
SLOW_PACKAGES := mds clientfuse shard/raftgroup dataserver client
UNIT_PACKAGES = $(SLOW_PACKAGES:%=./%) $(shell $(GO) list ./... | grep -v /internal/clustertest)

.PHONY: build
build: ## build every binary into bin/
	$(GO) build -o bin/ ./cmd/...

.PHONY: check
check: tools generated format vet ## all of it
	# Clusters wait for disks and timers, while checkers want the processors. The
	# unit tests come after them: both together starve each other's time-outs since
	# npm and make run on the clusters' mounts.
	$(MAKE) --no-print-directory --jobs=2 cluster staticcheck
	$(MAKE) --no-print-directory unit

.PHONY: tools
tools: ## what the tests need beside Go: a C compiler for -race, and the programs that run on the mount
	./internal/clustertest/tools.sh

.PHONY: generate
generate: ## make the generated code anew
	$(GO) run ./internal/protogen

.PHONY: generated
generated: ## fail if the generated code is not what the sources give
	before=$$(cat api/canopy/v1/*.pb.go | sha256sum)
	$(GO) run ./internal/protogen
	after=$$(cat api/canopy/v1/*.pb.go | sha256sum)
	if [ "$$before" != "$$after" ]; then echo "generated code was out of date: commit what 'make generate' made" >&2; exit 1; fi

.PHONY: format
format:
	unformatted=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go'))
	if [ -n "$$unformatted" ]; then echo "not gofmt'd:" >&2; echo "$$unformatted" >&2; exit 1; fi

.PHONY: vet
vet:
	$(GO) vet ./...

.PHONY: staticcheck
staticcheck:
	$(GO) tool staticcheck ./...

.PHONY: unit
unit: ## architecture test and unit tests, with the race detector
	$(GO) test -race -vet=off -p 4 -parallel 4 -timeout 20m $(UNIT_PACKAGES)

.PHONY: cluster
cluster: ## real processes and real mounts
	$(GO) test -vet=off -timeout 30m -count=1 -parallel 4 $(CLUSTER_PACKAGES)

.PHONY: rules
rules: ## break each rule of the protocols in turn: the test that stands for it must fail (some minutes)
	$(GO) run ./internal/mutation

.PHONY: help
help:
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/'
