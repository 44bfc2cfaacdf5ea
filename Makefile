# `make check` is the one entry: everything that CI holds.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := build
GO ?= go
# Packages whose tests start clusters or mounts run alone, after the others.
CLUSTER_PACKAGES := ./internal/clustertest/...
UNIT_PACKAGES = $(shell $(GO) list ./... | grep -v /internal/clustertest)

.PHONY: build
build: ## build every binary into bin/
	$(GO) build -o bin/ ./cmd/...

.PHONY: check
check: tools generated format vet staticcheck unit cluster ## all of it

.PHONY: tools
tools: ## what the tests need beside Go: a C compiler for -race, rsync and fio for the mount
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
	$(GO) test -race -p 4 -timeout 10m $(UNIT_PACKAGES)

.PHONY: cluster
cluster: ## real processes and real mounts
	$(GO) test -timeout 30m -count=1 -parallel 2 $(CLUSTER_PACKAGES)

.PHONY: rules
rules: ## break each rule of the protocols in turn: the test that stands for it must fail (some minutes)
	$(GO) run ./internal/mutation

.PHONY: help
help:
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/'
