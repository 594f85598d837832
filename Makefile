# Every target makes what it needs on a fresh machine with Python 3.11 to 3.13, git and make.
# Environments and downloads are kept in $XDG_CACHE_HOME (or ~/.cache) and used again.

RELEASE ?= 0.16.0
# The first of these that starts and is new enough; give your own with PYTHON=...
ifndef PYTHON
PYTHON := $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
endif
BOOTSTRAP = "$(PYTHON)" tools/bootstrap.py
# Prints the path of an environment's Python, after making the environment if need be.
env = $(BOOTSTRAP) env requirements/$(1).txt

# What the locks leave out: wheels for systems that vLLM does not run on.
FOREIGN = colorama mlx mlx-lm mlx-metal pywin32 win32-setctime

# The engines' environments: the release each was locked for serves its neighbours as well.
ENGINES = engine-0.16.0 engine-0.23.0 engine-0.32.0

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-gpu doctor wheel image image-context bench lint lock series-lock rebase upstream table matrix clean python

help: ## Show this list
	@echo 'usage: make TARGET [RELEASE=$(RELEASE)] [PYTHON=python3.12] [ARGS="..."]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	|| sed -n 's/^\([a-z-]*\):.*## /  \1: /p' Makefile

demo: python ## The whole job on this machine's CPU: stock errors, patched wheel, served drafter
	@py=$$($(call env,tools)) && exec "$$py" tools/demo.py --release $(RELEASE) $(ARGS)

test: python lint ## Lint, types, unit tests, pinned sources, the real engine on a CPU
	@py=$$($(call env,dev)) && exec "$$py" -m pytest tests/unit tests/trees tests/kernels \
	tests/engine tests/gpu -m 'not slow' -rs $(ARGS)

test-gpu: python ## The stand-in on a CUDA GPU, Kimi-K2.5 on Blackwell: docs/gpu.md
	@py=$$($(call env,dev)) && exec "$$py" -m pytest tests/gpu -v -s -rs $(ARGS)

test-all: python lint ## The same, and what takes longer; results by release in build/test-all.md
	@py=$$($(call env,dev)) && mkdir -p build && { "$$py" -m pytest tests/unit tests/trees \
	tests/kernels tests/engine tests/images tests/gpu -rs --junitxml=build/test-all.xml $(ARGS); \
	status=$$?; "$$py" tools/results.py build/test-all.xml | tee build/test-all.md; exit $$status; }

doctor: python ## Will a target, a drafter, a release and cards work together? ARGS=--help
	@py=$$($(call env,tools)) && exec "$$py" tools/doctor.py $(ARGS)

wheel: python ## Official CUDA wheel in, patched wheel out, in dist/; no GPU needed
	@py=$$($(call env,tools)) && exec "$$py" tools/build_wheel.py --release $(RELEASE) $(ARGS)

image: python ## Image of the release with the series; needs docker, podman or buildah
	@py=$$($(call env,tools)) && exec "$$py" tools/image.py --release $(RELEASE) $(ARGS)

image-context: python ## What docker-bake.hcl and a plain docker build need besides the checkout
	@py=$$($(call env,tools)) && exec "$$py" tools/image.py --context $(ARGS)

bench: python ## Measure a running server, ARGS='--url http://...'; without it, what the tools cost
	@py=$$($(call env,bench)) && exec "$$py" tools/bench.py \
	$(if $(findstring -url,$(ARGS)),,--release $(RELEASE)) $(ARGS)

lint: python ## Style and types of our own code
	@py=$$($(call env,dev)) && "$$py" -m ruff check . && "$$py" -m ruff format --check . \
	&& "$$py" -m mypy && "$${py%/*}/hadolint" Dockerfile

lock: python ## Write requirements/*.txt anew from requirements/*.in
	@py=$$($(call env,dev)) && cd requirements && for name in tools dev bench $(ENGINES) ray; do \
	case $$name in engine-0.16.0) before='--exclude-newer 2026-04-10';; \
	engine-0.23.0) before='--exclude-newer 2026-06-20';; \
	engine-0.32.0) before='--exclude-newer 2026-10-21';; \
	ray) before='--exclude-newer 2026-10-21 --no-deps';; *) before=;; esac; \
	echo "requirements/$$name.txt"; \
	"$$py" -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header $$before $(addprefix --no-emit-package ,$(FOREIGN)) $(ARGS) \
	$$name.in --output-file $$name.txt || exit; done

series-lock: python ## Write the release's series.lock anew
	@py=$$($(call env,tools)) && exec "$$py" tools/lock.py --release $(RELEASE) $(ARGS)

rebase: python ## Carry the series of release FROM to release TO; stops at conflicts, resumes
	@py=$$($(call env,tools)) && exec "$$py" tools/rebase.py --from $(FROM) --to $(TO) $(ARGS)

upstream: python ## A patch as a branch for vLLM, or what vLLM has already: ARGS='prepare 0004 --repo DIR'
	@py=$$($(call env,tools)) && exec "$$py" tools/upstream.py $(ARGS)

table: python ## Write the fault tables and docker-bake.hcl anew
	@py=$$($(call env,tools)) && exec "$$py" tools/matrix.py --write $(ARGS)

matrix: python ## Probe every release's source for every fault, apply every series
	@py=$$($(call env,tools)) && exec "$$py" tools/matrix.py $(ARGS)

clean: python ## Remove from the cache what no present release, requirement or series asks for
	@$(BOOTSTRAP) clean $(ARGS)

python:
	@command -v "$(PYTHON)" >/dev/null || { echo 'make: no Python 3.11, 3.12 or 3.13 found; install one,' \
	'or name it: make PYTHON=/path/to/python3.12' >&2; exit 2; }
