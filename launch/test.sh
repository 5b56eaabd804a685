#!/usr/bin/env bash
# Installs specdec and its test packages into .venv (once) and runs every test and doctest, cheapest first.
#   launch/test.sh [--heavy] [PYTEST ARGUMENTS]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment test
cd "$ROOT"
exec "$VENV_PYTHON" -m pytest --numprocesses=auto --maxprocesses=8 --dist=loadfile "$@"
