# A thin front end for CMake: every target is one or two commands that can be typed as well.
# The presets are in CMakePresets.json, the package lists in tools/setup.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 60

# The comment after the name of a target is its help; `make help` prints them in this order.
.PHONY: help
help:  ## list the targets
	@echo "Tandem. Usage: make TARGET"
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile

.PHONY: quickstart
quickstart:  ## install, build, and train a first model on handwritten digits (start here)
	@tools/quickstart

.PHONY: setup
setup:  ## install the Debian packages that the build needs, unless they are installed
	@tools/setup

.PHONY: setup-etcd
setup-etcd:  ## install etcd, without starting it, for the tests of the store between hosts
	@tools/setup --etcd

.PHONY: setup-launchers
setup-launchers:  ## install sshd, Slurm and munge, without starting them, for the tests of launchers
	@tools/setup --launchers

.PHONY: all
all: setup  ## build everything, optimised, into build/release
	@tools/build release

.PHONY: debug
debug: setup  ## build everything for a debugger, into build/debug
	@tools/build debug

.PHONY: test
test:  ## build and run all tests
	@tools/setup --test --etcd --launchers
	@tools/run-tests release

.PHONY: test-parity
test-parity:  ## install PyTorch, which is large, and run the tests that compare with it
	@tools/setup --parity
	@tools/run-tests release -L parity -V

.PHONY: asan
asan:  ## run all tests under the address and undefined-behaviour sanitizers
	@tools/setup --test
	@tools/run-tests asan

.PHONY: tsan
tsan:  ## run all tests under the thread sanitizer
	@tools/setup --test
	@tools/run-tests tsan

.PHONY: test-slow
test-slow:  ## train models to the accuracy they should reach (about 20 minutes on 2 cores)
	@tools/setup --test
	@tools/build release
	@ctest --test-dir build/release -C Slow -L slow --output-on-failure

.PHONY: test-portable
test-portable:  ## the golden training runs with gcc and clang, at all levels, and for ARM under qemu (about 5 minutes)
	@tools/setup --test --portable
	@tools/test-portable

.PHONY: test-dist
test-dist:  ## train on ranks in every combination of settings; all must give the same bits (hours)
	@tools/setup --test
	@tools/build release
	@TANDEM=build/release/tandem tests/dist/hashes_test.sh all

.PHONY: test-chaos
test-chaos:  ## faults in 300 training runs on one host, 300 on several, and 20,000 simulated ones (about 40 minutes)
	@tools/setup --test --etcd
	@tools/build release
	@tests/chaos/chaos.py build/release/tandem --runs 300
	@tests/chaos/hosts.py build/release/tandem --runs 300 --at-once 3
	@build/release/tests/sim_elastic 20000

.PHONY: lint
lint:  ## check format, layers, headers, symbols and scripts; build with clang; run clang-tidy
	@tools/setup --dev
	@tools/lint

.PHONY: format
format:  ## format all C files
	@tools/setup --dev
	@tools/list-files c | xargs clang-format -i

.PHONY: fuzz
fuzz:  ## fuzz every parser for FUZZ_SECONDS (60) each, two at a time
	@tools/setup --dev
	@tools/fuzz $(FUZZ_SECONDS)

.PHONY: bench
bench:  ## measure size and speed, as ratios to peers or to physical bounds
	@tools/setup --bench
	@tools/build release
	@status=0; bench/run || status=1; bench/compute || status=1; bench/comm || status=1; \
	    bench/parallel || status=1; bench/elastic || status=1; bench/sync || status=1; exit $$status

.PHONY: docs
docs: setup  ## generate docs/job-file.md from the table of job keys
	@tools/build release tandem
	@build/release/tandem job keys --markdown > build/job-file.md && mv build/job-file.md docs/job-file.md
	@echo "docs: wrote docs/job-file.md"

.PHONY: install
install: all  ## install under PREFIX (/usr/local), below DESTDIR if it is set
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

.PHONY: uninstall
uninstall:  ## remove the installed files, with the same PREFIX and DESTDIR
	@tools/uninstall "$(DESTDIR)$(PREFIX)"

.PHONY: clean
clean:  ## remove build/; runs/ and downloaded data stay
	@rm -rf build
