# Everything a person needs: `make demo` shows what Signpost does, `make test` proves it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help demo test check unit control-plane helm kernel-6.1 bench generate clean

help: ## List what can be made
	@sed -n 's/^\([a-z0-9.-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: ## Show it on this machine: namespaces, a node, servers, real connections; no cluster needed
	@tools/set-up demo
	@cargo build --release --package node-agent --package tests \
		--bin signpost-agent --bin demo --bin echo-server --bin probe
	@target/release/demo

test: check control-plane helm ## Run every test, on a real control plane and a real kernel
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

helm: ## Build Helm for the tests of the chart; once, then cached
	@tools/set-up
	tools/helm/build

kernel-6.1: ## Every test that asks a kernel, on Linux 6.1 in an emulated machine; some 10 minutes
	@tools/set-up
	cargo build --package tests --package node-agent --bins
	cargo test --package tests --no-run --test '*_kernel'
	set -o pipefail; SIGNPOST_KERNEL_RIG=all cargo test --package tests --test kernel_rig 2>&1 | tools/tally

bench: ## How long the kernel takes, by size of the cluster, in one run
	@tools/set-up demo
	cargo bench --package tests --bench nftables

generate: ## Write what is generated: CRDs, and their copies in the chart
	cargo run --quiet --package crds --bin generate-crds
	cp crds/generated/*.yaml charts/signpost/files/crds/

clean: ## Remove what was built here
	cargo clean
	rm -rf .cache dist
image: ## Write the images of agent and operator to dist/ as OCI archives; no container daemon needed
	images/programs target/images
	images/archives target/images dist

