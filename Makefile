# Two commands matter: `make up` runs a cluster on this machine, `make test` runs every test.

CARGO ?= cargo
DIR ?= .ashlar
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help up down build release test check proof bench soak crashes planted clean

help:
	@echo "make up       build, and run a cluster in $(DIR)"
	@echo "make build    install what is missing, build, link ./ashlar"
	@echo "make release  the same, optimised as a whole, which takes longer to build"
	@echo "make down     stop it"
	@echo "make test     everything CI runs (installs what tests need)"
	@echo "make check    format, lints, unit tests, 50 seeds: before every commit"
	@echo "make proof    beside it, what proves the tests: planted bugs, 500 seeds, all cases (hours)"
	@echo "make bench    speed beside the machine's limits (docs/performance.md)"
	@echo "make soak     fresh seeds for fuzzers, properties and simulators until stopped;"
	@echo "              make soak SEEDS=A..B runs these once"
	@echo "make crashes  every crash of one member and every two in pools with parity (hours);"
	@echo "              make crashes SEEDS=A..B runs other schedules"
	@echo "make planted  shows that the simulator finds planted bugs"

up: build
	./ashlar up --dir $(DIR) --detach

down:
	@if [ -x ./ashlar ]; then ./ashlar down --dir $(DIR); else echo "nothing was built, nothing runs"; fi

build:
	sh scripts/install.sh build
	$(CARGO) build --profile quick --locked -p ashlar
	ln -sf $(TARGET)/quick/ashlar ashlar

release:
	sh scripts/install.sh build
	$(CARGO) build --release --locked -p ashlar
	ln -sf $(TARGET)/release/ashlar ashlar

test:
	bash scripts/test.sh all

check:
	bash scripts/test.sh check

proof:
	bash scripts/test.sh proof

bench: release
	bash scripts/bench.sh

soak:
	bash scripts/soak.sh

crashes:
	$(CARGO) test --profile ci --locked --workspace --lib -- --ignored tests::stripe_crashes

planted:
	$(CARGO) build --profile ci --locked --workspace --bins
	$(TARGET)/ci/sim --planted all --seeds $(or $(SEEDS),1..500)

clean:
	$(CARGO) clean
	rm -f ashlar
