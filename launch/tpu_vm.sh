#!/usr/bin/env bash
# Runs one grid of configs/ on a TPU VM: creates it, sets it up, runs on every worker, copies the results, deletes it.
#   launch/tpu_vm.sh --name=NAME --zone=ZONE --grid=configs/FILE.py --output=gs://BUCKET/FOLDER [OPTIONS] [-- ARGUMENTS]
# Options:
#   --type=v4-8                  accelerator type; v4-8 is one host of four chips
#   --version=tpu-ubuntu2204-base   runtime version
#   --workers=N                  hosts; asked of the VM when not given (1 in a dry run)
#   --results=results            folder here that the results are copied to
#   --plan=gin/runs/plan_table_2.gin   models that are planned here first; what does not fit a host is refused. An hour or two
#                                the first time, then from runs/plan. `none`: no plan
#   --topology=v4:2x2x1          of one host, for the plan; follows from --type where that says it
#   --spot                       a VM that may be taken away; run again to go on
#   --keep                       do not delete the VM at the end
#   --existing                   use a VM that is there; it is not deleted
#   --dry_run                    print every gcloud line and run none
# ARGUMENTS go to --mode=sweep on every worker, e.g. -- --gin.ENDE_XXL="'gs://…'". Workers share the cells of the grid;
# records lie in --output as soon as each cell is done, so that an interrupted run goes on where it stopped.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"

fail() {
  printf 'specdec: %s\n' "$*" >&2
  exit 1
}

NAME='' ZONE='' GRID='' OUTPUT='' TYPE=v4-8 VERSION=tpu-ubuntu2204-base WORKERS='' RESULTS=results
PLAN=gin/runs/plan_table_2.gin TOPOLOGY=''
SPOT='' KEEP='' EXISTING='' DRY_RUN=''
while [[ $# -gt 0 ]]; do
  case "$1" in
    --name=*) NAME="${1#*=}" ;;
    --zone=*) ZONE="${1#*=}" ;;
    --grid=*) GRID="${1#*=}" ;;
    --output=*) OUTPUT="${1#*=}" ;;
    --type=*) TYPE="${1#*=}" ;;
    --version=*) VERSION="${1#*=}" ;;
    --workers=*) WORKERS="${1#*=}" ;;
    --results=*) RESULTS="${1#*=}" ;;
    --plan=*) PLAN="${1#*=}" ;;
    --topology=*) TOPOLOGY="${1#*=}" ;;
    --spot) SPOT=1 ;;
    --keep) KEEP=1 ;;
    --existing) EXISTING=1 ;;
    --dry_run) DRY_RUN=1 ;;
    --)
      shift
      break
      ;;
    *) fail "unknown argument $1; the head of launch/tpu_vm.sh lists them." ;;
  esac
  shift
done
[[ -n "$NAME" && -n "$ZONE" && -n "$GRID" && -n "$OUTPUT" ]] || fail "expected --name, --zone, --grid and --output."
[[ "$OUTPUT" == gs://* ]] || fail "--output: expected a gs:// folder, which every worker can write, found $OUTPUT."
[[ -f "$ROOT/$GRID" ]] || fail "--grid: expected a file in this checkout, found nothing at $GRID."
[[ -z "$WORKERS" || "$WORKERS" =~ ^[1-9][0-9]*$ ]] || fail "--workers: expected a number, found $WORKERS."

if [[ "$PLAN" != none ]]; then
  [[ -f "$ROOT/$PLAN" ]] || fail "--plan: expected a gin file in this checkout or none, found nothing at $PLAN."
  case "$TOPOLOGY/$TYPE" in
    ?*/*) ;;
    /v4-*) TOPOLOGY=v4:2x2x1 ;;
    /v5p-*) TOPOLOGY=v5p:2x2x1 ;;
    /v5litepod-4) TOPOLOGY=v5e:2x2 ;;
    /v6e-4) TOPOLOGY=v6e:2x2 ;;
    *) fail "--type: no host is known for $TYPE; give its --topology, e.g. v5e:2x2, or --plan=none." ;;
  esac
fi

run() {
  printf '%q ' "$@"
  printf '\n'
  [[ -n "$DRY_RUN" ]] || "$@"
}
tpu() { run gcloud compute tpus tpu-vm "$@" --zone="$ZONE"; }
quoted() { printf '%q ' "$@"; }

ARCHIVE=
# shellcheck disable=SC2329  # By the trap below.
clean_up() {
  [[ -z "$ARCHIVE" ]] || rm -f "$ARCHIVE"
  [[ -n "$KEEP" || -n "$EXISTING" ]] || tpu delete "$NAME" --quiet
}

# 0. Plan, here and without a TPU: every worker has the models on its own chips, so they must fit one host.
if [[ "$PLAN" != none ]]; then
  VENV_PYTHON=python
  if [[ -z "$DRY_RUN" ]]; then
    # shellcheck source=launch/environment.sh
    source "$ROOT/launch/environment.sh"
    prepare_environment tpu_plan
    cd "$ROOT"
  fi
  run "$VENV_PYTHON" -m specdec.main --mode=plan --gin_file="$PLAN" --output="$RESULTS/plan.md" \
    --gin.TOPOLOGY="'$TOPOLOGY'" --gin.MUST_FIT=True || fail "the plan was refused, see above; nothing was created."
fi

# 1. Create.
if [[ -z "$EXISTING" ]]; then
  tpu create "$NAME" --accelerator-type="$TYPE" --version="$VERSION" ${SPOT:+--spot}
fi
trap clean_up EXIT
if [[ -z "$WORKERS" ]]; then
  WORKERS=1
  if [[ -z "$DRY_RUN" ]]; then
    WORKERS="$(gcloud compute tpus tpu-vm describe "$NAME" --zone="$ZONE" --format='value(networkEndpoints.len())')"
  fi
fi

# 2. Set up: this checkout as it is committed, and its environment with libtpu.
ARCHIVE="$(mktemp)"
if [[ -z "$DRY_RUN" ]]; then
  git -C "$ROOT" archive --format=tar.gz --output="$ARCHIVE" HEAD
  COMMIT="$(git -C "$ROOT" rev-parse --short HEAD)"
else
  COMMIT=HEAD
fi
tpu scp "$ARCHIVE" "$NAME:specdec.tar.gz" --worker=all
SETUP="mkdir -p specdec && tar -xzf specdec.tar.gz -C specdec && cd specdec && echo $COMMIT >COMMIT"
SETUP+=" && source launch/environment.sh && prepare_environment tpu_plan"
tpu ssh "$NAME" --worker=all --command="bash -c $(quoted "$SETUP")"

# 3. Run on every worker; each takes its share of the cells.
PIDS=()
for ((worker = 0; worker < WORKERS; worker++)); do
  SWEEP="cd specdec && source launch/environment.sh && prepare_environment tpu_plan && \"\$VENV_PYTHON\" -m specdec.main"
  SWEEP+=" $(quoted --mode=sweep --grid="$GRID" --output="$OUTPUT" --host="$worker" --hosts="$WORKERS" "$@")"
  tpu ssh "$NAME" --worker="$worker" --command="bash -c $(quoted "$SWEEP")" &
  PIDS+=("$!")
  [[ -z "$DRY_RUN" ]] || wait "$!" # One line after another.
done
CODE=0
for pid in "${PIDS[@]}"; do
  wait "$pid" || CODE=$?
done

# 4. Copy the results; what failed is among them. 5. Delete, on the way out.
run mkdir -p "$RESULTS"
run gcloud storage cp --recursive "$OUTPUT" "$RESULTS"
exit "$CODE"
