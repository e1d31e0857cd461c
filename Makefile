# The only list of commands. A comment after two hashes is what `make help` prints.

.DEFAULT_GOAL := help
.PHONY: help setup build demo dashboard python test test-kube demo-kube demo-slurm bench-kube fix bench screenshots soak fuzz reference experiments install dist clean

# A shell that never read rustup's profile still finds cargo.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

BOLD := $(if $(NO_COLOR),,$(if $(MAKE_TERMOUT),\033[1m))
PLAIN := $(if $(BOLD),\033[0m)
# Where cargo builds; the Python tests start what is there.
target = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
# The tests' own interpreter, which leaves nothing beside the sources.
python = PYTHONDONTWRITEBYTECODE=1 '$(target)/python/bin/python'
# Where the recorded results are, if not where xtask looks for them.
reference_folder = $(if $(REFERENCE),'$(REFERENCE)')
# What package-lock.json says. Not `npm ci`, which fails where a registry lacks packages for other systems.
packages = npm install --no-save --silent --no-fund --no-audit
# Programs that run in a container without libraries, and where they are.
static_build = RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked --target '$(shell uname -m)-unknown-linux-gnu' \
	--bins -p pollux-cli -p pollux-supervisor -p pollux-trainer
static = $(target)/$(shell uname -m)-unknown-linux-gnu/debug
heading = @printf '\n$(BOLD)==> %s$(PLAIN)\n' '$(1)'

help: ## print this list
	@printf 'usage: make TARGET\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## make sure the tools that the tests need are here
	$(call heading,tools)
	@command -v cargo >/dev/null || { echo 'error: cargo is missing; install Rust from https://rustup.rs' >&2; exit 1; }
	@need() { command -v "$$1" >/dev/null || { tool=$$1; shift; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
		then apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$$@"; \
		else echo "error: $$tool is missing; install the packages $$*" >&2; return 1; fi; }; }; \
	need cc gcc libc6-dev && need git git && need python3 python3 && need node nodejs && need npm npm && \
	{ [ -n "$$POLLUX_CHROMIUM" ] || need chromium chromium; } && \
	{ need faketime faketime 2>/dev/null || echo 'note: without faketime the test of clocks that go back is skipped'; } && \
	{ PATH="$$PATH:/usr/sbin" need slurmctld slurmctld slurmd slurm-client munge 2>/dev/null || \
		echo 'note: without slurmctld, slurmd, slurm-client and munge the tests on Slurm are skipped'; }
	@need() { cargo "$$1" --version >/dev/null 2>&1 || rustup component add "$$2" || \
		{ echo "error: $$2 is missing; install it beside cargo" >&2; return 1; }; }; \
	need fmt rustfmt && need clippy clippy
	@python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: $$(python3 --version) is too old or has no venv; install Python 3.11 or newer with venv" >&2; exit 1; }
	@cargo --version

build: ## build the release binary, target/release/pollux
	$(call heading,build)
	@cargo build --release --locked --bin pollux

demo: ## build, then watch real trainings share eight slots (about two minutes)
	$(call heading,build)
	@cargo build --release --locked --bin pollux --bin pollux-trainer
	$(call heading,demo)
	@target/release/pollux demo

dashboard: ## build the web page that the server embeds, crates/server/assets (needs Node; `make build` does not)
	$(call heading,dashboard)
	@cd dashboard && $(packages) && npm run --silent build

python: ## build the Python package into target/python, an interpreter with all that its tests need
	$(call heading,python)
	@# With the features of the tests, so that nothing is built twice.
	@cargo build --workspace --all-features --locked
	@python/environment.sh '$(target)/debug/libpollux_python.so' '$(target)/python' python/requirements-test.txt
	@# TensorFlow and PyTorch are not loaded into one process: whoever finds TensorFlow imports it, as TensorBoard does.
	@python/environment.sh '$(target)/debug/libpollux_python.so' '$(target)/keras' python/requirements-keras.txt

test: setup ## check everything: format, lints, tests, docs; writes nothing but target/ and a cache
	$(call heading,format)
	@cargo fmt --all --check
	$(call heading,lints)
	@cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	$(call heading,tests)
	@# The same made-up cases every time; 'make soak' tries others.
	@PROPTEST_RNG_SEED=21 cargo test --workspace --all-features --locked
	@$(MAKE) --no-print-directory python
	@$(python) -m ruff format --no-cache --quiet --check --diff python && $(python) -m ruff check --no-cache --quiet python
	@$(python) -m mypy --config-file python/pyproject.toml --cache-dir '$(target)/mypy' python/pollux python/adaptdl/adaptdl
	@$(python) -m pytest python/tests -q
	$(call heading,dashboard)
	@cd dashboard && $(packages) && npm run --silent check && POLLUX_BINARIES='$(target)/debug' npm test
	$(call heading,docs)
	@RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	$(call heading,all checks passed)

demo-slurm: setup ## watch trainings follow allocations of a real Slurm, beside Slurm jobs of a fixed size (about ten minutes; needs root)
	$(call heading,build)
	@cargo build --workspace --all-features --locked
	$(call heading,demo)
	@'$(target)/debug/slurm-demo'

demo-kube: ## watch trainings share a real Kubernetes cluster with made-up GPUs (about six minutes; needs what test-kube needs)
	$(call heading,build)
	@$(static_build)
	$(call heading,demo)
	@POLLUX_STATIC='$(static)' cargo run --locked --quiet -p pollux-testbed -- demo

bench-kube: build ## measure the operator with 1,000 nodes and 2,000 jobs that KWOK plays (about ten minutes; needs Go and curl)
	$(call heading,a thousand nodes)
	@cargo run --locked --quiet -p pollux-testbed -- bench --operator '$(target)/release/pollux'

test-kube: ## test on a real Kubernetes cluster with made-up GPUs; needs Go, and root for nodes (tests/kube/README.md)
	$(call heading,tests on Kubernetes)
	@$(static_build)
	@cargo test --workspace --all-features --locked --test bed --test chart --test refusals --test kubectl -- --ignored
	@POLLUX_STATIC='$(static)' cargo test --workspace --all-features --locked \
		--test conformance -- --test-threads 1
	@POLLUX_STATIC='$(static)' cargo test --workspace --all-features --locked \
		--test operator -- --ignored --test-threads 1

fix: ## repair format and lints where a tool can
	$(call heading,lints)
	@cargo clippy --workspace --all-targets --all-features --fix --allow-dirty --allow-staged
	$(call heading,format)
	@cargo fmt --all
	@[ ! -e '$(target)/python' ] || { $(python) -m ruff check --no-cache --quiet --fix python; \
		$(python) -m ruff format --no-cache --quiet python; }
	@cd dashboard && $(packages) && npm run --silent fix

bench: build ## measure the live scheduler, plans, simulations and fits (REFERENCE=DIR)
	@cargo xtask bench $(reference_folder)
	@cd dashboard && $(packages) && \
		POLLUX_BINARIES='$(target)/release' npx playwright test --project=measure

screenshots: ## draw the pictures of docs/dashboard.md, of a real cluster
	@cargo build --locked --bin pollux --bin pollux-trainer
	@# Pictures show where programs are: not in anybody's own folders.
	@ln -sfn '$(target)/debug' /tmp/pollux
	@cd dashboard && $(packages) && \
		POLLUX_BINARIES=/tmp/pollux npx playwright test --project=screenshots

soak: ## try the properties of engine and policies with cases that nobody has tried before
	@cargo test --locked -p pollux-engine -p pollux-policy -p pollux-sim

fuzz: ## try the REST interface with schemathesis for two minutes (needs Python and PyPI)
	@cargo build --locked --bin pollux
	@tests/fuzz/run "$$PWD/target/debug/pollux" "$$PWD/target/fuzz"

reference: ## compare fits and goodput with the reference files (REFERENCE=DIR), as JSON
	@cargo xtask reference $(reference_folder)

experiments: build ## answer the paper's questions: tables and plots into experiments/results (POLLUX_DATA=DIR)
	@for folder in experiments/[0-9]*; do \
		printf '\n$(BOLD)==> %s$(PLAIN)\n' "$$folder"; \
		cargo run --release --locked --quiet --bin pollux -- experiment "$$folder" || exit 1; \
	done

install: ## install the pollux command into cargo's bin folder
	@cargo install --path crates/cli --locked

dist: ## build wheels into target/dist that install without a compiler (needs PyPI)
	$(call heading,wheels)
	@python/dist.sh '$(target)/dist'

clean: ## remove everything that was built
	@cargo clean
