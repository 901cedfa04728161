# The common tasks; `make help` lists them. Nothing here installs anything: what is missing is named, with the command
# that would install it.

CARGO ?= cargo
TOLLGATE := target/release/tollgate
SRC ?=
CRATE ?=
FILES ?=
TESTS ?=
TARGET ?= decode
TIME ?= 600
TARGETS ?= --lib

.DEFAULT_GOAL := help
.PHONY: help build demo demo-linux guests guests-linux test test-guests lint bench bench-scaling kvm-unit-tests fuzz mutants clean deb site tools-build tools-deb tools-linux

help:
	@echo 'make demo            three experiments on bare-metal guests: ours beside the published tables, and a report'
	@echo 'make demo-linux      boot the distribution kernel, run hackbench and ssdd, print who crossed which boundary'
	@echo 'make build           the tollgate program, optimized'
	@echo 'make guests          bare-metal guests (target/guests) and the Linux guest (guests/linux/out)'
	@echo 'make test            unit tests, bare-metal guests, and Linux boots where packages can be had'
	@echo 'make test-guests [TESTS=bare::] [ARGS=...]   guests whose names contain TESTS (default: the default groups)'
	@echo 'make lint            formatting, clippy, documentation'
	@echo 'make bench           the hot paths; one workload on tollgate, on this host, and on QEMU and Bochs where they are installed'
	@echo 'make bench-scaling   1 to 8 processors, 128 MB to 8 GB of memory: time and memory, beside QEMU where it is installed'
	@echo 'make kvm-unit-tests SRC=dir [ARGS=...]   run kvm-unit-tests images built in dir (see scripts/kvm-unit-tests --help)'
	@echo 'make fuzz [TARGET=decode] [TIME=600]     fuzz one target (a file of fuzz/fuzz_targets) for TIME seconds'
	@echo 'make mutants CRATE=lab [FILES=GLOB] [TESTS=NAME] [TARGETS=--lib]   what the tests of a crate do not notice'
	@echo 'make deb             a Debian package (by cargo-deb), with manual pages, completions and bare-metal guests'
	@echo 'make site            the documents as a web site (by mdBook), in target/site/book'
	@echo 'make clean           remove what was built (the package cache under guests/linux/cache stays)'

tools-build:
	@scripts/check-tools cargo gcc objcopy

tools-deb: tools-build
	@scripts/check-tools cargo-deb

tools-linux: tools-build
	@scripts/check-tools cpio apt-get dpkg-deb readelf flock

build: tools-build
	$(CARGO) build --release --bin tollgate

guests: guests-linux
	$(MAKE) --no-print-directory -C guests/bare

guests-linux: tools-linux
	@guests/linux/kernel
	@guests/linux/build
	@guests/linux/build --kernexec || echo 'the guest image with the kernexec module is not made (see above); the others are' >&2

deb: tools-deb
	$(MAKE) --no-print-directory build
	$(MAKE) --no-print-directory -C guests/bare
	$(TOLLGATE) generate man target/package/man
	mkdir -p target/package/completions
	$(TOLLGATE) generate completions bash >target/package/completions/tollgate
	$(TOLLGATE) generate completions zsh >target/package/completions/_tollgate
	$(TOLLGATE) generate completions fish >target/package/completions/tollgate.fish
	gzip -9n <CHANGELOG.md >target/package/changelog.gz
	printf 'tollgate (%s-1) unstable; urgency=low\n\n  * See changelog.gz.\n\n -- The Tollgate authors <>  %s\n' \
	    "$$($(TOLLGATE) --version | cut -d' ' -f2)" "$$(date -R -r CHANGELOG.md)" >target/package/changelog
	cargo deb --no-build --strip --package tollgate

site:
	@scripts/site

demo: tools-build build
	@$(MAKE) --no-print-directory -s -C guests/bare
	@scripts/demo

demo-linux: tools-linux build
	@scripts/demo-linux

test: tools-build build
	$(MAKE) --no-print-directory -C guests/bare
	$(CARGO) test --workspace --no-fail-fast
	scripts/check-parameters
	scripts/check-images
	scripts/check-selftests
	@command -v python3 >/dev/null || { echo 'skip  the Python package: no python3'; exit 0; }; python3 -m unittest discover -s python/tests
	$(CARGO) test --package guest-tests --test guests

test-guests: tools-build build
	$(CARGO) test --package guest-tests --test guests -- $(TESTS) $(ARGS)

lint: tools-build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps
	@! $(CARGO) tree --package tollgate --edges normal,build --prefix none | grep '^testkit ' || { echo 'tollgate is built with testkit, which is for tests only' >&2; exit 1; }
	cd fuzz && $(CARGO) fmt --check && $(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) xtask rooms
	$(CARGO) xtask circles --check
	@command -v python3 >/dev/null || { echo 'skip  links: no python3'; exit 0; }; scripts/check-links >/dev/null && scripts/site --source >/dev/null

bench: tools-linux build
	$(CARGO) bench -p cpu --bench interpreter
	@scripts/bench $(ARGS)

bench-scaling: tools-linux build
	@scripts/bench-scaling $(ARGS)

kvm-unit-tests: build
	@[ -n "$(SRC)" ] || { echo 'make kvm-unit-tests wants SRC=dir, a built kvm-unit-tests tree' >&2; exit 2; }
	@scripts/kvm-unit-tests $(ARGS) "$(SRC)"

# Crashes, time-outs and memory beyond 2 GiB are findings, kept in fuzz/artifacts; the run goes on and fails at its end. Large
# blocks are mapped, so that zeroed memory costs an input only what it touches.
fuzz: tools-build
	@scripts/check-tools cargo-fuzz
	cd fuzz && $(CARGO) run --quiet --example seeds
	cd fuzz && $(CARGO) fuzz build --sanitizer none $(TARGET)
	cd fuzz && mkdir -p artifacts/$(TARGET) && MALLOC_MMAP_THRESHOLD_=1000000 \
	    target/*/release/$(TARGET) corpus/$(TARGET) -artifact_prefix=artifacts/$(TARGET)/ -max_total_time=$(TIME) \
	    -timeout=10 -rss_limit_mb=2048 -fork=1 -ignore_crashes=1 -ignore_timeouts=1 -ignore_ooms=1 $(ARGS)
	@cd fuzz && ! ls artifacts/$(TARGET)/* 2>/dev/null

# Changes one expression at a time and runs the crate's unit tests, or those of TARGETS (options of `cargo test`). A change that no test notices is in
# target/mutants/mutants.out/missed.txt and makes the command fail; snapshots are compared, never written.
mutants: tools-build
	@scripts/check-tools cargo-mutants
	@[ -n "$(CRATE)" ] || { echo 'make mutants wants CRATE=name, a directory of crates/' >&2; exit 2; }
	INSTA_UPDATE=no $(CARGO) mutants --package $(CRATE) $(if $(FILES),--file '$(FILES)') --timeout 300 --output target/mutants \
	    $(addprefix --cargo-arg=,$(TARGETS)) $(ARGS) -- $(TESTS)

clean:
	$(CARGO) clean
	rm -rf guests/linux/out
