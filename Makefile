# Every job sets itself up first: a fresh machine needs only python3, make and git.
.PHONY: setup demo test test-thorough test-gguf test-vllm test-clients check docs microbench clean

setup:
	@scripts/setup

demo:
	@scripts/setup demo
	@scripts/setup-smollm2
	@.venv/bin/draftwise demo

test: setup
	@scripts/test

# The tests that do more with time: all parameters, more sampled texts.
test-thorough: setup
	@scripts/test-thorough

# The tests of GGUF models, which need llama-cpp-python; it is compiled.
test-gguf: setup
	@scripts/setup-gguf
	@scripts/test-gguf

# The tests of the same policies inside vLLM, in an environment of their own.
test-vllm:
	@scripts/setup-vllm
	@scripts/test-vllm

# Clients whose pins exclude ours, against a server of the bundled models; vLLM's where `make test-vllm` has set it up.
test-clients: setup
	@scripts/test-clients

check: setup
	@scripts/check

# The documentation's site, in build/site.
docs: setup
	@scripts/docs

# What single parts cost on this machine; leave it alone meanwhile.
microbench: setup
	@OMP_NUM_THREADS=1 .venv/bin/python -m studies.microbench

clean:
	rm -rf .venv .venv-vllm dist build .pytest_cache .mypy_cache .ruff_cache
	find src studies tests -name __pycache__ -type d -prune -exec rm -rf {} +
