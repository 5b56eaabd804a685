"""The one entry point: `python -m specdec.main --mode=MODE --gin_file=FILE`.

Configuration is gin in the manner of T5X: several `--gin_file`s (a later one
wins), `--gin_search_paths`, and overrides as `--gin.NAME=value`. Gin files
use dynamic registration: they import what they configure.
"""

from collections.abc import Sequence
import importlib
import inspect
import logging as std_logging
import sys

from absl import app
from absl import flags
from absl import logging
import gin

from specdec.modes import configuration
from specdec.modes.configuration import folder as gin_folder
from specdec.modes.configuration import parse as parse_gin

MODES = {
    "decode": "specdec.modes.decode:decode",
    "evaluate": "specdec.modes.evaluate:evaluate",
    "measure_alpha": "specdec.modes.measure_alpha:measure_alpha",
    "benchmark": "specdec.modes.benchmark:benchmark",
    "trace": "specdec.modes.trace:trace",
    "trees": "specdec.modes.trees:trees",
    "train": "specdec.modes.train:train",
    "export": "specdec.modes.export:export",
    "convert": "specdec.modes.convert:convert",
    "beam": "specdec.modes.beam:beam",
    "fit_ngram": "specdec.modes.fit_ngram:fit_ngram",
    "sweep": "specdec.modes.sweep:sweep",
    "report": "specdec.modes.report:report",
    "plan": "specdec.modes.plan:plan",
}

_MODE = flags.DEFINE_enum("mode", None, sorted(MODES), "What to do.", required=True)
_GIN_FILE = flags.DEFINE_multi_string("gin_file", [], "A gin file; may be given several times.")
_GIN_BINDINGS = flags.DEFINE_multi_string("gin_bindings", [], "A gin binding; --gin.NAME=value is one, if something reads NAME.")
_GIN_MACRO = flags.DEFINE_multi_string("gin_macro", [], "A macro that something must read; --gin.NAME=value adds NAME.")
_GIN_SEARCH_PATHS = flags.DEFINE_list("gin_search_paths", [], "Folders in which gin files are looked for before ours.")
_INPUT = flags.DEFINE_string("input", None, "Input file ('-' is stdin); overrides the gin file.")
_OUTPUT = flags.DEFINE_string("output", None, "Output file ('-' is stdout); overrides the gin file.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the resolved configuration (of a sweep: its cells) and stop.")
_GRID = flags.DEFINE_string("grid", None, "sweep: a grid file, such as those in configs/.")
_CELLS = flags.DEFINE_string("cells", None, "sweep: only cells whose name this regular expression matches.")
_RETRY = flags.DEFINE_enum("retry", None, ["none", "failed", "changed", "all"], "sweep: which cells run again.")
_PARALLEL = flags.DEFINE_integer("parallel", None, "sweep: cells at a time on a host; 0 is what its devices allow.")
_HOST = flags.DEFINE_integer("host", None, "sweep: the number of this host, of those that share the cells.")
_HOSTS = flags.DEFINE_integer("hosts", None, "sweep: how many hosts share the cells.")
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "Starts jax.distributed: HOST:PORT of process 0, or 'auto' on TPU VMs and SLURM."
)
_PROCESSES = flags.DEFINE_integer("processes", None, "With --coordinator=HOST:PORT: how many processes there are.")
_PROCESS = flags.DEFINE_integer("process", None, "With --coordinator=HOST:PORT: the number of this one, from 0.")
_AGAINST = flags.DEFINE_enum("against", None, ["flax", "t5x"], "What --mode=benchmark compares with ('t5x' needs T5X).")


def rewrite_gin_args(args: Sequence[str]) -> list[str]:
  """Turns `--gin.NAME=value` into `--gin_bindings=NAME = value`, as T5X does, and notes which are macros."""
  rewritten = []
  for arg in args:
    if arg.startswith("--gin."):
      if "=" not in arg:
        raise ValueError(f"{arg}: expected --gin.NAME=value.")
      name, value = arg[len("--gin.") :].split("=", maxsplit=1)
      arg = f"--gin_bindings={name} = {value}"
      if name.isidentifier():
        rewritten.append(f"--gin_macro={name}")
    rewritten.append(arg)
  return rewritten


def _function(mode: str):
  module, name = MODES[mode].split(":")
  return getattr(importlib.import_module(module), name)


def start_distributed(coordinator: str | None, processes: int | None = None, process: int | None = None) -> None:
  """Joins the processes of several hosts into one JAX program; None leaves this process alone.

  Args:
    coordinator: 'HOST:PORT' of process 0, or 'auto' where the system says all
      three (TPU VMs, SLURM).
    processes: how many there are.
    process: the number of this one, from 0.

  Raises:
    ValueError: an address without both numbers, or numbers without an address.
  """
  if coordinator is None or coordinator == "auto":
    if (processes, process) != (None, None):
      raise ValueError("--processes, --process: expected them with --coordinator=HOST:PORT only.")
    if coordinator is None:
      return
  elif processes is None or process is None:
    raise ValueError("--coordinator=HOST:PORT: expected --processes and --process with it.")
  import jax  # Not before a mode needs it.

  if coordinator == "auto":
    jax.distributed.initialize()
  else:
    jax.distributed.initialize(coordinator, processes, process)


def run_mode(mode: str, **overrides):
  """Calls the function of `mode` with its gin bindings; `overrides` win.

  Raises:
    ValueError: the mode does not take an override, or lacks an argument.
  """
  function = _function(mode)
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
  overrides = {
      "input": _INPUT.value, "output": _OUTPUT.value, "grid": _GRID.value, "cells": _CELLS.value, "retry": _RETRY.value,
      "parallel": _PARALLEL.value, "host": _HOST.value, "hosts": _HOSTS.value, "against": _AGAINST.value,
  }  # fmt: skip
  overrides = {name: value for name, value in overrides.items() if value is not None}
  takes = inspect.signature(_function(_MODE.value)).parameters
  if "gin_bindings" in takes:  # Its runs are configured, and not itself.
    overrides |= {"gin_files": _GIN_FILE.value, "gin_bindings": _GIN_BINDINGS.value}
    overrides |= {"gin_search_paths": _GIN_SEARCH_PATHS.value, "dry_run": _DRY_RUN.value}
  else:
    try:
      parse_gin(_GIN_FILE.value, _GIN_BINDINGS.value, _GIN_SEARCH_PATHS.value)
      configuration.check_macros(_GIN_MACRO.value)
    except (ValueError, AttributeError, ImportError, OSError, SyntaxError) as error:  # What gin raises.
      _exit(error)
    if _DRY_RUN.value:
      print(gin.config_str())
      return
  logging.set_verbosity(max(logging.INFO, logging.get_verbosity()))
  try:
    start_distributed(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
    run_mode(_MODE.value, **overrides)
  except (ValueError, OSError, FloatingPointError, ModuleNotFoundError) as error:
    _exit(error)
  except KeyboardInterrupt:
    sys.exit(130)


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
