#!/usr/bin/env bash
# Installs specdec into .venv (once) and decodes with the shipped models. Further arguments go to specdec.main.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment ""
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
exec "$VENV_PYTHON" -m specdec.main --mode=decode --gin_file="$ROOT/gin/runs/demo.gin" "$@"
