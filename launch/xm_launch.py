"""Runs a grid by XManager: one experiment, one work unit a cell, each with a TPU slice of its own.

  python launch/xm_launch.py --grid=configs/leviathan_table2.py --output=gs://BUCKET/table2 \
    --tpu=v4 --topology=2x2x1 [--executor=kubernetes] [--cells=REGEX] [--dry_run] [-- ARGUMENTS OF EVERY SWEEP]

Every work unit is `--mode=sweep` of one cell into the same folder, so that records, retries and the report are those of
any sweep, and a work unit that starts again does not repeat what is done. XManager (github.com/google-deepmind/xmanager)
is imported only here, and not for `--dry_run`; install it into an environment of its own, its protobuf is older than
TensorFlow's.
"""

from collections.abc import Sequence
import pathlib
import re
import shlex
import sys
from typing import Any, NamedTuple

from absl import app
from absl import flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXECUTORS = ("kubernetes", "vertex", "local")

_GRID = flags.DEFINE_string("grid", None, "A grid file of configs/.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder of the results that all work units share, e.g. gs://…")
_CELLS = flags.DEFINE_string("cells", "", "Only cells whose name this regular expression matches.")
_TPU = flags.DEFINE_string("tpu", "v4", "TPU generation: v4, v5e, v5p, v6e …")
_TOPOLOGY = flags.DEFINE_string("topology", "2x2x1", "Of a work unit's slice; 2x2x1 is one v4 host.")
_EXECUTOR = flags.DEFINE_enum("executor", "kubernetes", EXECUTORS, "Where the work units run.")
_BASE_IMAGE = flags.DEFINE_string("base_image", "python:3.12-slim", "Of the container.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the command of every work unit and stop.")


class Trial(NamedTuple):
  """One work unit: the name of its cell, and the arguments of `specdec.main`."""

  name: str
  arguments: tuple[str, ...]


def trials(grid_path: str, cells: str, output: str, arguments: Sequence[str]) -> list[Trial]:
  """A trial for each cell that `cells` matches.

  Raises:
    ValueError: no cell does.
  """
  sys.path.insert(0, str(ROOT))
  from specdec.benchmark import grid as grid_lib

  names = [cell["name"] for cell in grid_lib.load(str(ROOT / grid_path))["cells"]]
  chosen = [name for name in names if not cells or re.fullmatch(cells, name)]
  if not chosen:
    raise ValueError(f"--cells: no cell's name matches {cells!r}; there are {names}.")
  fixed = ("--mode=sweep", f"--grid={grid_path}", f"--output={output}", "--retry=failed")
  return [Trial(name, (*fixed, f"--cells={re.escape(name)}", *arguments)) for name in chosen]


def container(xm: Any, base_image: str) -> Any:
  """The executable: this checkout, installed with libtpu, and `specdec.main` as its entry point."""
  return xm.PythonContainer(
      path=str(ROOT),
      base_image=base_image,
      docker_instructions=[
          f"COPY {ROOT.name}/ /specdec",
          "WORKDIR /specdec",
          "RUN pip install --no-cache-dir --constraint constraints.txt --editable '.[tpu_plan]'",
      ],
      entrypoint=xm.CommandList(['cd /specdec && python -m specdec.main "$@"']),
  )


def requirements(xm: Any, tpu: str, topology: str) -> Any:
  """The TPU slice of a work unit.

  Raises:
    ValueError: XManager knows no such TPU.
  """
  try:
    return xm.JobRequirements(**{f"tpu_{tpu}": topology})
  except (AttributeError, KeyError) as error:
    raise ValueError(f"--tpu: expected a generation that XManager knows, found {tpu!r} ({error}).") from error


def add_trials(xm: Any, experiment: Any, executable: Any, executor: Any, work: Sequence[Trial]) -> None:
  """Adds a work unit a trial to an experiment, with the name of its cell as its identity."""
  for trial in work:
    arguments = xm.merge_args(list(trial.arguments))
    experiment.add(xm.Job(executable=executable, executor=executor, args=arguments, name=trial.name), identity=trial.name)


def _executor(xm: Any, xm_local: Any, kind: str, tpu: str, topology: str) -> Any:
  if kind == "local":
    return xm_local.Local()
  maker = {"kubernetes": xm_local.Kubernetes, "vertex": xm_local.Vertex}[kind]
  return maker(requirements=requirements(xm, tpu, topology))


def main(argv: Sequence[str]) -> None:
  for flag in (_GRID, _OUTPUT):
    if flag.value is None:
      raise app.UsageError(f"--{flag.name}: expected a value.")
  try:
    work = trials(_GRID.value, _CELLS.value, _OUTPUT.value, argv[1:])
  except ValueError as error:
    sys.exit(f"specdec: {error}")
  if _DRY_RUN.value:
    for trial in work:
      print(f"# {trial.name}: {_EXECUTOR.value}, tpu_{_TPU.value}={_TOPOLOGY.value}")
      print(shlex.join(["python", "-m", "specdec.main", *trial.arguments]))
    return
  try:
    from xmanager import xm
    from xmanager import xm_local
  except ImportError as error:
    sys.exit(f"specdec: XManager is missing ({error}); `pip install xmanager`, or use launch/tpu_vm.sh.")
  executor = _executor(xm, xm_local, _EXECUTOR.value, _TPU.value, _TOPOLOGY.value)
  with xm_local.create_experiment(experiment_title=f"specdec {pathlib.Path(_GRID.value).stem}") as experiment:
    [executable] = experiment.package([xm.Packageable(container(xm, _BASE_IMAGE.value), type(executor).Spec())])
    add_trials(xm, experiment, executable, executor, work)


if __name__ == "__main__":
  app.run(main)
