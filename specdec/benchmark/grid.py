"""A grid of experiments as plain Python data, and the record that each of its cells leaves.

A grid file defines `GRID`, a dict:

  name, title, source   what it repeats, and where that was published
  command, hardware, minutes   how it is run, on what, and how long that takes
  comparable            whether the published values are of the same models and data
  mode, gin_files, bindings   what every cell runs: a mode, and its configuration
  timed                 cells measure time, so that on a CPU they run one after another
  chips                 accelerator chips that a cell needs; 0 is all of a host
  quantities            what the report shows of a cell, see `benchmark.results`
  cells                 dicts of name, labels (shown), bindings, gin_files, published

Bindings are lines of gin. Every cell's record is one JSON file, written under
another name and renamed, so that it is there whole or not at all.
"""

from collections.abc import Mapping, Sequence
import hashlib
import json
import os
import re
import runpy
import sys
from typing import Any, NamedTuple

from etils import epath

_REQUIRED = ("name", "title", "source", "command", "hardware", "minutes", "comparable", "mode", "quantities", "cells")
_DEFAULTS = {"gin_files": [], "bindings": [], "timed": True, "chips": 0}
_CELL_DEFAULTS = {"labels": {}, "bindings": [], "gin_files": [], "published": {}}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

DONE, FAILED, CHANGED, OPEN = "done", "failed", "changed", "open"


def load(path: str) -> dict[str, Any]:
  """Reads and checks the `GRID` of a file.

  Args:
    path: a Python file; what lies in the folder above it can be imported, so
      that grids of `configs/` share `configs/published.py`.

  Raises:
    ValueError: no such file, no GRID, a field that is missing or unknown, or two
      cells of one name.
  """
  if not os.path.isfile(path):
    raise ValueError(f"grid: expected a Python file at {path}, found nothing there; see configs/.")
  above = os.path.dirname(os.path.dirname(os.path.abspath(path)))
  sys.path.insert(0, above)
  try:
    found = runpy.run_path(path).get("GRID")
  except Exception as error:  # A grid is code: whatever it raises is its user's to mend.
    raise ValueError(f"grid: {path} cannot be read ({type(error).__name__}: {error}).") from error
  finally:
    sys.path.remove(above)
  return check(found, path)


def check(found: Any, path: str = "the grid") -> dict[str, Any]:
  """The grid with its defaults; raises a `ValueError` that says what is wrong with it."""
  if not isinstance(found, dict):
    raise ValueError(f"grid: expected {path} to define the dict GRID, found {type(found).__name__}.")
  _check_fields(found, set(_REQUIRED), set(_DEFAULTS), path)
  grid = _DEFAULTS | found
  cells = []
  for cell in grid["cells"]:
    _check_fields(cell, {"name"}, set(_CELL_DEFAULTS), f"a cell of {path}")
    if not _NAME.fullmatch(cell["name"]):
      raise ValueError(f"grid: expected cell names of letters, digits, '.', '_' and '-', found {cell['name']!r}.")
    cells.append(_CELL_DEFAULTS | cell)
  names = [cell["name"] for cell in cells]
  twice = sorted({name for name in names if names.count(name) > 1})
  if twice or not cells:
    raise ValueError(f"grid: expected cells of different names in {path}, found {twice or 'none'}.")
  return grid | {"cells": cells}


def _check_fields(found: Mapping[str, Any], required: set[str], optional: set[str], where: str) -> None:
  missing, unknown = sorted(required - set(found)), sorted(set(found) - required - optional)
  if missing or unknown:
    raise ValueError(f"grid: {where}: missing fields {missing}, unknown fields {unknown}.")


class Run(NamedTuple):
  """What one cell runs.

  Attributes:
    mode: of `specdec.main`.
    gin_files: in order.
    bindings: in order, the later win.
  """

  mode: str
  gin_files: tuple[str, ...]
  bindings: tuple[str, ...]

  def arguments(self) -> list[str]:
    """The command line of `specdec.main`, without its output."""
    files = [f"--gin_file={name}" for name in self.gin_files]
    return [f"--mode={self.mode}", *files, *(f"--gin_bindings={line}" for line in self.bindings)]


def run_of(
    grid: Mapping[str, Any], cell: Mapping[str, Any], gin_files: Sequence[str] = (), bindings: Sequence[str] = ()
) -> Run:
  """What `cell` runs; files and bindings given for the whole sweep come last, and win."""
  return Run(
      grid["mode"],
      (*grid["gin_files"], *cell["gin_files"], *gin_files),
      (*grid["bindings"], *cell["bindings"], *bindings),
  )


def fingerprint(run: Run, resolved: str) -> str:
  """What tells a cell's settings from others: its mode and the configuration that gin resolved."""
  return hashlib.sha256(f"{run.mode}\n{resolved}".encode()).hexdigest()[:16]


class Results:
  """The folder of a sweep: `grid.json`, `cells/NAME.json`, `failed/NAME.json`, `logs/NAME.log`.

  Args:
    folder: any path that `etils.epath` opens, `gs://` too.
  """

  def __init__(self, folder: str):
    self.folder = epath.Path(folder)

  def write_grid(self, grid: Mapping[str, Any]) -> None:
    self._write("grid.json", json.dumps(grid, indent=1, ensure_ascii=False, default=str))

  def read_grid(self) -> dict[str, Any]:
    """The grid whose cells lie here.

    Raises:
      ValueError: there is none.
    """
    try:
      return json.loads((self.folder / "grid.json").read_text())
    except (OSError, ValueError) as error:
      raise ValueError(f"results: expected a folder that --mode=sweep wrote, found no grid.json in {self.folder}.") from error

  def state(self, name: str, wanted: str) -> str:
    """`DONE`, `FAILED`, `CHANGED` (done or failed with other settings than `wanted`) or `OPEN`."""
    for state, record in ((DONE, self.record(name)), (FAILED, self.failure(name))):
      if record is not None:
        return state if record["fingerprint"] == wanted else CHANGED
    return OPEN

  def record(self, name: str) -> dict[str, Any] | None:
    """What a finished cell left."""
    return self._read(f"cells/{name}.json")

  def failure(self, name: str) -> dict[str, Any] | None:
    """What is known of a cell that failed."""
    return self._read(f"failed/{name}.json")

  def finish(self, name: str, record: Mapping[str, Any], log: str) -> None:
    """Keeps the record of a cell that went well; an older failure goes."""
    self._write(f"logs/{name}.log", log)
    self._write(f"cells/{name}.json", json.dumps(record, ensure_ascii=False))
    (self.folder / "failed" / f"{name}.json").unlink(missing_ok=True)

  def fail(self, name: str, record: Mapping[str, Any], log: str) -> None:
    """Keeps why a cell failed; the record of an earlier success under other settings goes."""
    self._write(f"logs/{name}.log", log)
    self._write(f"failed/{name}.json", json.dumps(record, ensure_ascii=False))
    (self.folder / "cells" / f"{name}.json").unlink(missing_ok=True)

  def _read(self, name: str) -> dict[str, Any] | None:
    try:
      return json.loads((self.folder / name).read_text())
    except FileNotFoundError:
      return None
    except ValueError as error:
      raise ValueError(f"results: {self.folder / name} is no JSON ({error}); remove it.") from error

  def _write(self, name: str, text: str) -> None:
    path = self.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f"{path.name}.{os.getpid()}.partial"
    partial.write_text(text)
    partial.replace(path)
