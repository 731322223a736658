#!/usr/bin/env bash
# Lint, formatting, types, which way imports go, the links of the pages, and the workflows of continuous integration.
# Needs the extra dev.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ruff check .
ruff format --check .
mypy
lint-imports
rumdl check --no-cache --quiet .
zizmor --offline --quiet .github
