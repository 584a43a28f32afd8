# Everything a person needs: `make demo` shows what Signpost does, `make test` proves it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help demo test check unit properties control-plane helm cluster cluster-down cluster-set-up e2e kernels image plugin sbom bench fleet soak generate clean

help: ## List what can be made
	@sed -n 's/^\([a-z0-9.-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: ## Show it on this machine: namespaces, a node, servers, real connections; no cluster needed
	@tools/set-up demo
	@cargo build --profile demo --package node-agent --package demo --bins
	@target/demo/demo

# Linked with the C library in them, as programs of images are: the programs that the tests start here are also those of the images that clusters
# run, so nothing is built twice. For a target by name, or the flags would reach macros, which the compiler loads.
test: export CARGO_BUILD_TARGET = $(shell rustc -vV | sed -n 's/^host: //p')
test: export RUSTFLAGS = -C target-feature=+crt-static
test: built = target/$(CARGO_BUILD_TARGET)/debug
test: check control-plane helm ## Run every test, on a real control plane, real kubelets and a real kernel
	cargo build --workspace --bins --examples --tests
	install -D --strip --target-directory target/images/test $(built)/signpost-agent $(built)/signpost-operator
	WRITE_IMAGE=$(built)/write-image OPERATOR_LIMIT=60MB images/archives target/images/test dist/test
	set -o pipefail; SIGNPOST_IMAGES=$(CURDIR)/dist/test $(built)/run-tests 2>&1 | tools/tally

check: ## Formatting and lints
	@tools/set-up
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- --deny warnings

unit: ## The tests that need neither namespaces nor a control plane
	cargo test --workspace --exclude tests --no-fail-fast

properties: ## Look for cases that break a property, other ones each time: `make properties cases=20000`
	PROPTEST_CASES=$(or $(cases),20000) cargo test --workspace --exclude tests --no-fail-fast

control-plane: ## Build the real API server, etcd and controllers for the tests; once, then cached
	@tools/set-up
	tests/control-plane/build

helm: ## Build Helm for the tests of the chart; once, then cached
	@tools/set-up
	tools/helm/build

cluster: cluster-set-up image control-plane helm ## Start a real cluster here, kubelets and all, to try Signpost on: `make cluster nodes=3`
	@cargo build --quiet --package tests --bin cluster
	@target/debug/cluster up --nodes $(or $(nodes),3) $$(printf -- '--image %s ' dist/*-linux-$(MACHINE).tar)

cluster-down: ## End it, and leave nothing behind
	@[ -x target/debug/cluster ] || cargo build --quiet --package tests --bin cluster
	@target/debug/cluster down

cluster-set-up:
	@[ "$$(id -u)" = 0 ] || { echo 'Containers take root: sudo --preserve-env=HOME env PATH="$$PATH" make cluster' >&2; exit 1; }
	@tools/set-up cluster

e2e: cluster-set-up control-plane helm $(if $(filter kube-proxy,$(PROXY)),,image) ## Run Kubernetes' own tests of Services on a real cluster: `make e2e`, `make e2e PROXY=kube-proxy`; an hour
	@cargo build --quiet --package tests --bin e2e
	@target/debug/e2e --proxy $(or $(PROXY),signpost) $(FLAGS)

kernels: control-plane ## Every test that asks a kernel, on Debian's: `make kernel-6.1-user-mode`, `make kernel-6.12-user-mode` for one as a program, an hour or more; `make kernels`, `make kernel-6.1` emulated, hours
	cargo build --workspace --bins
	cargo test --workspace --no-run --test '*_kernel' --test without_nft_hash --test differential_kube_proxy --test bench_small --test kernel_rig
	set -o pipefail; SIGNPOST_KERNELS='$(or $(KERNELS),5.10 6.1 6.12)' cargo test --workspace --test kernel_rig 2>&1 | tools/tally

# Processors that images and plugin are built for, in the order of their building. Those of other machines take a cross compiler.
MACHINE := $(if $(filter aarch64,$(shell uname -m)),arm64,amd64)
ARCHS ?= $(MACHINE)
# Where the programs for a processor are.
programs = target/images$(if $(filter-out $(MACHINE),$(1)),/$(1))

image: ## Write the images of agent and operator to dist/ as OCI archives; no container daemon needed: `make image ARCHS='amd64 arm64'`
	set -e; $(foreach arch,$(ARCHS),ARCH=$(arch) images/programs $(call programs,$(arch)); \
		ARCH=$(arch) images/archives $(call programs,$(arch)) dist;)

plugin: ## Write kubectl signpost for download to dist/, with krew's manifest of it; publishes nothing
	set -e; $(foreach arch,$(ARCHS),ARCH=$(arch) images/programs $(call programs,$(arch)) kubectl-signpost;)
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)} \
		cargo run --quiet --locked --release --package images --bin write-plugin -- \
		$(foreach arch,$(ARCHS),--program $(arch)=$(call programs,$(arch))/kubectl-signpost) --license LICENSE --output dist
	@echo 'Nothing is published yet: the address in dist/signpost.yaml is where a release will be.'

sbom: ## Write what images and plugin are made of to dist/, in CycloneDX
	ARCHS='$(ARCHS)' images/sbom dist

kernel-%:
	@$(MAKE) --no-print-directory kernels KERNELS=$*

bench: control-plane ## Measure it against kube-proxy: `make bench FLAGS='--services 500 --rounds 2'`; hours as it is, see bench/README.md
	@images/programs target/images
	@cargo build --release --package tests --bin bench
	@target/release/bench --agent target/images/signpost-agent $(FLAGS)

fleet: control-plane ## Measure what the operator costs at 100, 1,000 and 5,000 nodes: `make fleet FLAGS='--nodes 100'`; an hour
	cargo build --quiet --release --package tests --package operator --bin fleet --bin signpost-operator
	@target/release/fleet $(FLAGS)

soak: control-plane ## Change and break everything on two nodes for an hour, and count what is lost: `make soak FLAGS='--minutes 10'`
	@images/programs target/images
	@cargo build --release --package tests --bin soak
	@target/release/soak --agent target/images/signpost-agent $(FLAGS)

generate: ## Write what is generated: CRDs and their copies in the chart, pages about API and flags, dashboards and alerts
	cargo run --quiet --package crds --bin generate-crds
	cp crds/generated/*.yaml charts/signpost/files/crds/
	cargo run --quiet --package dashboards --bin generate-dashboards
	UPDATE=1 cargo test --quiet --package tests --lib flag_reference

clean: ## Remove what was built here
	cargo clean
	rm -rf .cache dist
