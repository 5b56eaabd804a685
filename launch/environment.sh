# shellcheck shell=bash
# The virtual environment of the launch scripts. Source this, then call `prepare_environment EXTRA` ("" for none),
# which sets VENV_PYTHON to a Python that has specdec and the packages of that extra installed from this checkout.
#
#   SPECDEC_VENV  its folder (default: .venv in the checkout)
#   PYTHON        the Python to make it with (default: the first of python3, python3.13 … that fits)

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="${SPECDEC_VENV:-$ROOT/.venv}"
[[ "$VENV" == /* ]] || VENV="$PWD/$VENV"
CONSTRAINTS="$ROOT/constraints.txt"

say() { printf 'specdec: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Succeeds for Python $1 from 3.11 on and, where $2 is given, up to 3.$2.
python_fits() { "$1" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, ${2:-99}))" 2>/dev/null; }

# Sets BASE_PYTHON. TensorFlow Text has no wheel after 3.13, so a later Python is not chosen by itself.
find_python() {
  local candidate
  if [[ -n "${PYTHON:-}" ]]; then
    python_fits "$PYTHON" || fail "needs Python 3.11 or later; PYTHON=$PYTHON is $(python_version "$PYTHON" || echo 'not a Python')."
    BASE_PYTHON="$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11; do
    if python_fits "$candidate" 13; then
      BASE_PYTHON="$candidate"
      return
    fi
  done
  fail "needs Python 3.11, 3.12 or 3.13; python3 is $(python_version python3 || echo 'missing'). Install one, or name one: PYTHON=/path/to/python $0"
}

# What was installed: it changes with the requirements and the place of the checkout.
fingerprint() {
  "$1" - "$ROOT" <<'PYTHON_CODE'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
digest = hashlib.sha256(str(root).encode() + sys.version.encode())
for name in ("setup.py", "constraints.txt"):
  digest.update((root / name).read_bytes())
print(digest.hexdigest())
PYTHON_CODE
}

# Succeeds if the environment holds what setup.py and constraints.txt ask for now, with extra $1.
environment_is_good() {
  local marker="$VENV/.specdec-${1:-base}"
  python_fits "$VENV_PYTHON" && [[ -f "$marker" && "$(<"$marker")" == "$(fingerprint "$VENV_PYTHON")" ]]
}

make_environment() {
  find_python
  if "$BASE_PYTHON" -c 'import ensurepip' 2>/dev/null; then
    "$BASE_PYTHON" -m venv --clear "$VENV"
  else # Debian without python3-venv: the new environment gets its pip from the old one.
    "$BASE_PYTHON" -m venv --clear --without-pip "$VENV"
    "$BASE_PYTHON" -m pip --python "$VENV_PYTHON" install --quiet --constraint "$CONSTRAINTS" pip
  fi
}

install_specdec() {
  local extra="$1"
  local pip=("$VENV_PYTHON" -m pip --disable-pip-version-check)
  "${pip[@]}" install --quiet --constraint "$CONSTRAINTS" --upgrade pip setuptools
  # The build uses the setuptools just installed, so that its version is pinned too.
  "${pip[@]}" install --quiet --constraint "$CONSTRAINTS" --no-build-isolation --editable "$ROOT${extra:+[$extra]}"
}

prepare_environment() {
  local extra="$1" started=$SECONDS
  VENV_PYTHON="$VENV/bin/python"
  environment_is_good "$extra" && return
  (
    # One installation at a time: all of them write the metadata of this checkout.
    if command -v flock >/dev/null && ! flock --nonblock 9; then
      say "waiting for another installation from this checkout"
      flock 9
    fi
    environment_is_good "$extra" && exit 0
    if ! python_fits "$VENV_PYTHON"; then
      if [[ -e "$VENV" && ! -e "$VENV/pyvenv.cfg" && -n "$(ls -A "$VENV")" ]]; then
        fail "$VENV is not a virtual environment and not empty; move it away, or set SPECDEC_VENV to another folder."
      fi
      make_environment
    fi
    say "installing into $VENV (some minutes the first time; 3.3 GB on disk)"
    rm -f "$VENV"/.specdec-*
    install_specdec "$extra"
    fingerprint "$VENV_PYTHON" >"$VENV/.specdec-${extra:-base}"
    fingerprint "$VENV_PYTHON" >"$VENV/.specdec-base"
    say "installed in $((SECONDS - started)) s"
  ) 9<"$ROOT/launch/environment.sh"
}
