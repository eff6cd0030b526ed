# make train    installs what is needed and solves CartPole-v1 with PPO
# make enjoy    shows a trained lander: its returns, and a film in trained/LunarLander-v3-ppo/videos
# make test     installs what is needed and runs the tests
# make test-slow   runs the tests that `make test` leaves out: learning and long ones
# make bugs     puts each mistake of tests/mutants/ into a copy of the scripts: its test must fail
# make bug-pictures  redraws docs/pictures/, and trains what a curve there lacks
# make torture  tries thousands of senseless command lines and a hundred kills
# make speed    installs stable-baselines3 and sbx-rl beside, and compares speeds; takes half an hour
# make report   rebuilds the benchmark tables and curves from benchmarks/results/
# make screenshots   photographs TensorBoard, with a run beside our seeds, in a headless Chromium
# make animations    films the trained lander and cheetah, and writes their films as GIFs

PYTHON ?= python3
BIN := .venv/bin
NEEDS_PYTHON = Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.11
SEED ?= $(shell date +%s)  # of `make torture`, which prints it

train: .venv/installed
	$(BIN)/python algos/ppo.py --config benchmarks/cartpole.toml

enjoy: .venv/installed
	$(BIN)/python algos/ppo.py --evaluate trained/LunarLander-v3-ppo --capture-video

test: .venv/installed-dev
	$(BIN)/python -m pytest -q -n auto $(FLAGS) tests

test-slow: .venv/installed-dev
	$(BIN)/python -m pytest -q -n auto -m slow tests

bugs: .venv/installed-dev
	$(BIN)/python tests/mutants/check.py $(NAMES)

bug-pictures: .venv/installed-dev
	$(BIN)/python benchmarks/maintain/mistakes.py

torture: .venv/installed-dev
	TORTURE=$(SEED) $(BIN)/python -m pytest -q -n auto tests/plumbing/test_hostile.py

speed: .venv/installed-dev .venv-peers/installed
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/maintain/more_speeds.py seeds

report: .venv/installed-dev
	$(BIN)/python benchmarks/maintain/publish.py --from-csv
	$(BIN)/python benchmarks/report.py --from-csv --out benchmarks/results/variants

screenshots: .venv/installed
	$(BIN)/python benchmarks/maintain/screenshots.py

animations: .venv/installed
	$(BIN)/python benchmarks/maintain/animations.py

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

tensorboard: .venv/installed
	$(BIN)/tensorboard --logdir runs

clean:
	rm -rf .venv .venv-peers .pytest_cache .ruff_cache */__pycache__

# torch comes first, by itself, so that no other package chooses its version, and not quietly: it is a large download
.venv/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(NEEDS_PYTHON)")'
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/pip install "$$(grep '^torch==' requirements.txt)"
	$(BIN)/pip install --quiet -r requirements.txt
	touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	$(BIN)/pip install --quiet -r requirements-dev.txt
	touch $@

.venv-peers/installed: benchmarks/maintain/requirements-peers.txt
	rm -rf .venv-peers
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet "$$(grep '^torch==' requirements.txt)"
	.venv-peers/bin/pip install --quiet -r benchmarks/maintain/requirements-peers.txt
	touch $@

.PHONY: train enjoy test test-slow bugs bug-pictures torture speed report screenshots animations lint tensorboard clean
