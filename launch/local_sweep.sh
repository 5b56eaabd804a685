#!/usr/bin/env bash
# Runs grids of configs/ on this machine, one after another, and reports on all of them.
#   launch/local_sweep.sh [--dry_run] RESULTS GRID [GRID …] [-- ARGUMENTS OF EVERY SWEEP]
# RESULTS/NAME holds the records of configs/NAME.py, RESULTS/report the pages. An interrupted run goes on where it stopped.
#   launch/local_sweep.sh results configs/demo_table2.py configs/demo_table4.py -- --gin.INPUT="'test.en.gz'"
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

DRY_RUN=
if [[ "${1:-}" == --dry_run ]]; then
  DRY_RUN=1
  shift
fi
[[ $# -ge 2 ]] || fail "usage: launch/local_sweep.sh [--dry_run] RESULTS GRID [GRID …] [-- ARGUMENTS OF EVERY SWEEP]"
RESULTS="$1"
shift
GRIDS=()
while [[ $# -gt 0 && "$1" != -- ]]; do
  [[ -f "$1" ]] || fail "expected a grid file, found nothing at $1; see configs/"
  GRIDS+=("$1")
  shift
done
[[ $# -eq 0 ]] || shift

# Prints a command, and runs it unless this is a dry run.
run() {
  printf '%q ' "$@"
  printf '\n'
  [[ -n "$DRY_RUN" ]] || "$@"
}

if [[ -z "$DRY_RUN" ]]; then
  prepare_environment ""
else
  VENV_PYTHON=python
fi
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
FOLDERS=
FAILED=()
for grid in "${GRIDS[@]}"; do
  folder="$RESULTS/$(basename "$grid" .py)"
  run "$VENV_PYTHON" -m specdec.main --mode=sweep --grid="$grid" --output="$folder" "$@" || FAILED+=("$grid")
  FOLDERS+="${FOLDERS:+,}$folder"
done
run "$VENV_PYTHON" -m specdec.main --mode=report --gin_file=gin/runs/report.gin --input="$FOLDERS" --output="$RESULTS/report"
[[ ${#FAILED[@]} -eq 0 ]] || fail "not whole: ${FAILED[*]}; the report shows what failed."
