"""The one entry point: `python -m specdec.main --mode=MODE --gin_file=FILE`.

Configuration is gin in the manner of T5X: several `--gin_file`s (a later one
wins), `--gin_search_paths`, and overrides as `--gin.NAME=value`. Gin files
use dynamic registration: they import what they configure.
"""

from collections.abc import Sequence
import importlib
import logging as std_logging
import os
import sys

from absl import app
from absl import flags
from absl import logging
import gin

MODES = {
    "decode": "specdec.modes.decode:decode",
    "measure_alpha": "specdec.modes.measure_alpha:measure_alpha",
    "benchmark": "specdec.modes.benchmark:benchmark",
    "trace": "specdec.modes.trace:trace",
    "train": "specdec.modes.train:train",
    "export": "specdec.modes.export:export",
}

_MODE = flags.DEFINE_enum("mode", None, sorted(MODES), "What to do.", required=True)
_GIN_FILE = flags.DEFINE_multi_string("gin_file", [], "A gin file; may be given several times.")
_GIN_BINDINGS = flags.DEFINE_multi_string("gin_bindings", [], "A gin binding; --gin.NAME=value is the same.")
_GIN_SEARCH_PATHS = flags.DEFINE_list("gin_search_paths", [], "Folders in which gin files are looked for first.")
_INPUT = flags.DEFINE_string("input", None, "Input file ('-' is stdin); overrides the gin file.")
_OUTPUT = flags.DEFINE_string("output", None, "Output file ('-' is stdout); overrides the gin file.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the resolved configuration and stop.")


def gin_folder() -> str:
  """The folder of the gin files: inside the package when installed, beside it in a checkout."""
  package = os.path.dirname(os.path.abspath(__file__))
  inside = os.path.join(package, "gin")
  return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(package), "gin")


def rewrite_gin_args(args: Sequence[str]) -> list[str]:
  """Turns `--gin.NAME=value` into `--gin_bindings=NAME = value`, as T5X does."""
  rewritten = []
  for arg in args:
    if arg.startswith("--gin."):
      if "=" not in arg:
        raise ValueError(f"{arg}: expected --gin.NAME=value.")
      name, value = arg[len("--gin.") :].split("=", maxsplit=1)
      arg = f"--gin_bindings={name} = {value}"
    rewritten.append(arg)
  return rewritten


def parse_gin(files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str] = ()) -> None:
  """Parses files, then bindings; paths are relative to the working folder, the search paths, or ours."""
  folder = gin_folder()
  gin.clear_config(clear_constants=True)
  for path in (folder, os.path.dirname(folder), *search_paths):
    gin.add_config_file_search_path(path)
  gin.parse_config_files_and_bindings(list(files), list(bindings), skip_unknown=False)


def run_mode(mode: str, **overrides):
  """Calls the function of `mode` with its gin bindings; `overrides` win."""
  module, name = MODES[mode].split(":")
  function = getattr(importlib.import_module(module), name)
  try:
    function = gin.get_configurable(function)
  except (KeyError, ValueError):
    pass  # No gin file binds any of its parameters.
  return function(**overrides)


def _quiet_orbax(record) -> bool:
  """Drops orbax's and TensorStore's running commentary; warnings stay."""
  return record.levelno > std_logging.INFO or "orbax" not in record.pathname


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}.")
  parse_gin(_GIN_FILE.value, _GIN_BINDINGS.value, _GIN_SEARCH_PATHS.value)
  if _DRY_RUN.value:
    print(gin.config_str())
    return
  logging.set_verbosity(logging.INFO)
  logging.get_absl_logger().addFilter(_quiet_orbax)
  overrides = {"input": _INPUT.value, "output": _OUTPUT.value}
  try:
    run_mode(_MODE.value, **{name: value for name, value in overrides.items() if value is not None})
  except ValueError as error:
    if logging.level_debug():
      raise
    sys.exit(f"specdec: {str(error).strip()}")


def run() -> None:
  """The console command `specdec`."""
  app.run(main, flags_parser=lambda args: flags.FLAGS(rewrite_gin_args(args)))


if __name__ == "__main__":
  sys.exit(run())
