# Everything a person needs: `make demo` shows what Signpost does, `make test` proves it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help demo test check unit control-plane bench generate clean

help: ## List what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: ## Show it on this machine: namespaces, a node, servers, real connections; no cluster needed
	@tools/set-up demo
	@cargo build --release --package node-agent --package tests \
		--bin signpost-agent --bin demo --bin echo-server --bin probe
	@target/release/demo

test: check control-plane ## Run every test, on a real control plane and a real kernel
	cargo build --workspace --bins
	set -o pipefail; cargo test --workspace --no-fail-fast 2>&1 | tools/tally

check: ## Formatting and lints
	@tools/set-up
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- --deny warnings

unit: ## The tests that need neither namespaces nor a control plane
	cargo test --workspace --exclude tests --no-fail-fast

control-plane: ## Build the real API server, etcd and controllers for the tests; once, then cached
	@tools/set-up
	tests/control-plane/build

bench: ## How long the kernel takes, by size of the cluster, in one run
	@tools/set-up demo
	cargo bench --package tests --bench nftables

generate: ## Write what is generated: CRDs
	cargo run --quiet --package crds --bin generate-crds

clean: ## Remove what was built here
	cargo clean
	rm -rf .cache
