# The common tasks; `make help` lists them. Nothing here installs anything: what is missing is named, with the command
# that would install it.

CARGO ?= cargo
TOLLGATE := target/release/tollgate
SRC ?=

.DEFAULT_GOAL := help
.PHONY: help build demo guests guests-linux test lint bench kvm-unit-tests clean tools-build tools-linux

help:
	@echo 'make demo            boot the distribution kernel, run hackbench and ssdd, print who crossed which boundary'
	@echo 'make build           the tollgate program, optimized'
	@echo 'make guests          bare-metal guests (target/guests) and the Linux guest (guests/linux/out)'
	@echo 'make test            unit tests, bare-metal guests, and Linux boots where packages can be had'
	@echo 'make lint            formatting, clippy, documentation'
	@echo 'make bench           one workload on tollgate, and on QEMU and Bochs where they are installed'
	@echo 'make kvm-unit-tests SRC=dir [ARGS=...]   run kvm-unit-tests images built in dir (see scripts/kvm-unit-tests --help)'
	@echo 'make clean           remove what was built (the package cache under guests/linux/cache stays)'

tools-build:
	@scripts/check-tools cargo gcc objcopy

tools-linux: tools-build
	@scripts/check-tools cpio apt-get dpkg-deb readelf flock

build: tools-build
	$(CARGO) build --release --bin tollgate

guests: guests-linux
	$(MAKE) --no-print-directory -C guests/bare

guests-linux: tools-linux
	@guests/linux/kernel
	@guests/linux/build

demo: tools-linux build
	@scripts/demo

test: tools-build build
	$(MAKE) --no-print-directory -C guests/bare
	$(CARGO) test --workspace
	scripts/check-guests

lint: tools-build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps

bench: tools-linux build
	@scripts/bench $(ARGS)

kvm-unit-tests: build
	@[ -n "$(SRC)" ] || { echo 'make kvm-unit-tests wants SRC=dir, a built kvm-unit-tests tree' >&2; exit 2; }
	@scripts/kvm-unit-tests $(ARGS) "$(SRC)"

clean:
	$(CARGO) clean
	rm -rf guests/linux/out
