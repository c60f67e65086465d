# Every job sets itself up first: a fresh machine needs only python3, make and git.
.PHONY: setup demo test check clean

setup:
	@scripts/setup

demo: setup
	@.venv/bin/draftwise demo

test: setup
	@scripts/test

check: setup
	@scripts/check

clean:
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
