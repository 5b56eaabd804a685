"""The one entry point: `python -m specdec.main --mode=MODE --gin_file=FILE`.

Configuration is gin in the manner of T5X: several `--gin_file`s (a later one
wins), `--gin_search_paths`, and overrides as `--gin.NAME=value`. Gin files
use dynamic registration: they import what they configure.
"""

from collections.abc import Sequence
import importlib
import importlib.util  # gin uses it and does not import it
import inspect
import logging as std_logging
import os
import sys

from absl import app
from absl import flags
from absl import logging
import gin

MODES = {
    "decode": "specdec.modes.decode:decode",
    "evaluate": "specdec.modes.evaluate:evaluate",
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
_AGAINST = flags.DEFINE_enum("against", None, ["t5x"], "What --mode=benchmark compares with; t5x must be installed.")
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
  """Calls the function of `mode` with its gin bindings; `overrides` win.

  Raises:
    ValueError: the mode does not take an override, or lacks an argument.
  """
  module, name = MODES[mode].split(":")
  function = getattr(importlib.import_module(module), name)
  parameters = inspect.signature(function).parameters
  try:
    bound, function = gin.get_bindings(function, resolve_references=False), gin.get_configurable(function)
  except (KeyError, ValueError):
    bound = {}  # No gin file binds any of its parameters.
  surplus = sorted(overrides.keys() - parameters.keys())
  if surplus:
    raise ValueError(f"--mode={mode}: expected no --{surplus[0]}; this mode has no such argument.")
  given = bound.keys() | overrides.keys()
  missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in given]
  if missing:
    raise ValueError(
        f"--mode={mode}: expected values for {', '.join(missing)}; give a --gin_file, such as those in gin/runs."
    )
  return function(**overrides)


def _quiet(record) -> bool:
  """Drops the running commentary of orbax and of gin's search for files; orbax's warnings stay."""
  if record.filename == "resource_reader.py":
    return False
  return record.levelno > std_logging.INFO or "orbax" not in record.pathname


def _exit(error: Exception) -> None:
  """Ends the program with the message of an error that its user can mend; with -v=1 with the whole trace."""
  if logging.level_debug():
    raise error
  lines = str(error).strip().splitlines()
  sys.exit("specdec: " + "\n".join(line for line in lines if not line.startswith("  In call to configurable")))


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}.")
  logging.get_absl_handler().addFilter(_quiet)  # Of the handler: gin logs through the root logger.
  try:
    parse_gin(_GIN_FILE.value, _GIN_BINDINGS.value, _GIN_SEARCH_PATHS.value)
  except (ValueError, AttributeError, ImportError, OSError, SyntaxError) as error:  # What gin raises.
    _exit(error)
  if _DRY_RUN.value:
    print(gin.config_str())
    return
  logging.set_verbosity(max(logging.INFO, logging.get_verbosity()))
  overrides = {"input": _INPUT.value, "output": _OUTPUT.value, "against": _AGAINST.value}
  try:
    run_mode(_MODE.value, **{name: value for name, value in overrides.items() if value is not None})
  except (ValueError, OSError, FloatingPointError, ModuleNotFoundError) as error:
    _exit(error)


def _parse_flags(args: Sequence[str]) -> list[str]:
  try:
    args = rewrite_gin_args(args)
  except ValueError as error:
    sys.exit(f"specdec: {error}")
  return app.parse_flags_with_usage(args)


def run() -> None:
  """The console command `specdec`."""
  app.run(main, flags_parser=_parse_flags)


if __name__ == "__main__":
  sys.exit(run())
