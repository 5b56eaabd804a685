"""`--mode=sweep`: runs the cells of a grid, each in a process of its own, and goes on where it was stopped."""

from collections.abc import Mapping, Sequence
from concurrent import futures
import contextlib
import datetime
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from absl import logging
import gin
import tqdm

from specdec.benchmark import devices
from specdec.benchmark import grid as grid_lib
from specdec.modes import configuration

RETRY = {
    "none": (grid_lib.OPEN,),
    "failed": (grid_lib.OPEN, grid_lib.FAILED),
    "changed": (grid_lib.OPEN, grid_lib.CHANGED),
    "all": (grid_lib.OPEN, grid_lib.FAILED, grid_lib.CHANGED, grid_lib.DONE),
}
_CHILD = (sys.executable, "-m", "specdec.modes.cell")
_TAIL = 20  # Lines of a failed cell's log that are kept with it.


def sweep(
    grid: str,
    output: str,
    cells: str = "",
    retry: str = "none",
    parallel: int = 0,
    host: int = 0,
    hosts: int = 1,
    dry_run: bool = False,
    gin_files: Sequence[str] = (),
    gin_bindings: Sequence[str] = (),
    gin_search_paths: Sequence[str] = (),
) -> dict[str, list[str]]:
  """Runs what is not done yet of a grid.

  Args:
    grid: a Python file, see `benchmark.grid`.
    output: folder of the results, any path that `etils.epath` opens; hosts share
      it.
    cells: only cells whose name this regular expression matches in full.
    retry: which cells run besides those that never did: 'none', 'failed',
      'changed' (done with other settings), 'all'.
    parallel: cells at a time on this host; 0 is what its devices allow.
    host: the number of this host, from 0.
    hosts: how many share the cells; each takes every `hosts`-th.
    dry_run: resolve every cell, say what would run, and run nothing.
    gin_files: for every cell, after its own.
    gin_bindings: for every cell, after its own.
    gin_search_paths: as in `specdec.main`.

  Returns:
    The names of this host's cells by state, after the run.

  Raises:
    ValueError: a bad grid or argument, a cell that does not resolve, cells done
      with other settings (unless `retry` says what to do), or, after everything
      has run, cells that failed.
  """
  if retry not in RETRY:
    raise ValueError(f"retry: expected one of {sorted(RETRY)}, found {retry!r}.")
  if not 0 <= host < hosts:
    raise ValueError(f"host: expected a number in [0, {hosts}), found {host}.")
  wanted, results = grid_lib.load(grid), grid_lib.Results(output)
  slots = devices.slots(devices.this_host(), parallel, wanted["chips"], wanted["timed"])
  plan = _plan(wanted, cells, gin_files, gin_bindings, gin_search_paths)
  states = {name: results.state(name, plan[name][1]) for name in plan}
  changed = [name for name, state in states.items() if state == grid_lib.CHANGED]
  if changed and grid_lib.CHANGED not in RETRY[retry]:
    raise ValueError(
        f"sweep: {', '.join(changed)} in {output} ran with other settings; give another --output, or --retry=changed "
        "to run them again."
    )
  mine = [name for i, name in enumerate(plan) if i % hosts == host]
  todo = [name for name in mine if states[name] in RETRY[retry]]
  if dry_run:
    for name in mine:
      print(f"# {name}: {states[name]}{', would run' if name in todo else ''}")
      print(shlex.join(["python", "-m", "specdec.main", *plan[name][0].arguments()]))
    print(f"# {len(todo)} of {len(mine)} cells would run, {len(slots)} at a time; {wanted['hardware']}")
    return _by_state(states, mine)
  if host == 0:
    results.write_grid(wanted | {"gin_files": [*wanted["gin_files"]], "path": grid, "given": list(gin_bindings)})
  logging.info("%d of %d cells to run, %d at a time, into %s.", len(todo), len(mine), len(slots), output)
  flags = [f"--gin_search_paths={','.join(gin_search_paths)}"] if gin_search_paths else []
  _Runner(wanted, plan, results, flags, slots).run(todo)
  states |= {name: results.state(name, plan[name][1]) for name in todo}
  failed = [name for name in mine if states[name] == grid_lib.FAILED]
  for name in failed:
    record = results.failure(name)
    print(f"{name}: failed: {record['error'].splitlines()[-1] if record['error'] else record['code']}", file=sys.stderr)
  if failed:
    raise ValueError(
        f"sweep: {len(failed)} of {len(mine)} cells failed: {', '.join(failed)}. Their logs are in "
        f"{results.folder / 'logs'}; --retry=failed runs them again."
    )
  logging.info("All %d cells are done. Next: --mode=report --input=%s --output=FOLDER.", len(mine), output)
  return _by_state(states, mine)


def _plan(wanted, cells, gin_files, gin_bindings, gin_search_paths) -> dict[str, tuple[grid_lib.Run, str]]:
  """Of each chosen cell what it runs and its fingerprint; every cell is resolved before any runs."""
  try:
    chosen = [cell for cell in wanted["cells"] if not cells or re.fullmatch(cells, cell["name"])]
  except re.error as error:
    raise ValueError(f"cells: expected a regular expression, found {cells!r} ({error}).") from error
  if not chosen:
    raise ValueError(f"cells: no cell's name matches {cells!r}; there are {[c['name'] for c in wanted['cells']]}.")
  plan = {}
  for cell in chosen:
    run = grid_lib.run_of(wanted, cell, gin_files, gin_bindings)
    try:
      configuration.parse(run.gin_files, run.bindings, gin_search_paths)
      resolved = gin.config_str()
    except (ValueError, AttributeError, ImportError, OSError, SyntaxError) as error:
      missing = _missing(run.bindings, str(error))
      if missing:
        given = " ".join(f"--gin.{name}=…" for name in missing)
        raise ValueError(f"cell {cell['name']}: expected values for {', '.join(missing)}; give {given}") from error
      raise ValueError(f"cell {cell['name']}: {error}") from error
    finally:
      gin.clear_config(clear_constants=True)
    plan[cell["name"]] = (run, grid_lib.fingerprint(run, resolved))
  return plan


def _missing(bindings: Sequence[str], message: str) -> list[str]:
  """The macros that a cell leaves to its user: the one that gin's message names, and those of its own bindings."""
  named = re.search(r"(\w+)/macro\.value set to `%gin\.REQUIRED`", message)
  if named is None:
    return []
  values = dict(line.split(" = ", 1) for line in bindings if " = " in line)  # Of two lines the later one holds.
  return sorted({named[1], *(name for name, value in values.items() if value == "%gin.REQUIRED")})


def _by_state(states: Mapping[str, str], names: Sequence[str]) -> dict[str, list[str]]:
  found: dict[str, list[str]] = {}
  for name in names:
    found.setdefault(states[name], []).append(name)
  return found


class _Runner:
  """Runs cells as child processes, one a slot, and keeps what they leave."""

  def __init__(self, grid, plan, results: grid_lib.Results, flags: Sequence[str], slots: Sequence[Mapping[str, str]]):
    self._plan, self._results, self._flags = plan, results, list(flags)
    self._cells = {cell["name"]: cell for cell in grid["cells"]}
    self._free: queue.Queue[Mapping[str, str]] = queue.Queue()
    for slot in slots:
      self._free.put(slot)
    self._workers, self._children, self._stopped = len(slots), set(), threading.Event()

  def run(self, names: Sequence[str]) -> None:
    """Runs `names`; an interrupt or SIGTERM ends the children first."""
    started = time.perf_counter()
    with _terminates(), futures.ThreadPoolExecutor(self._workers) as pool:
      waiting = [pool.submit(self._run_cell, name) for name in names]
      try:
        with tqdm.tqdm(total=len(names), unit="cell", disable=not sys.stderr.isatty()) as progress:
          for count, done in enumerate(futures.as_completed(waiting), start=1):
            name, ok, seconds = done.result()
            progress.update()
            left = (time.perf_counter() - started) / count * (len(names) - count)
            if not sys.stderr.isatty():
              logging.info(
                  "%s %s in %.0f s; %d of %d cells, about %.0f minutes left.",
                  name, "done" if ok else "FAILED", seconds, count, len(names), left / 60,
              )  # fmt: skip
      except BaseException:
        self._stopped.set()
        for future in waiting:
          future.cancel()
        for child in list(self._children):
          child.terminate()
        print("sweep: stopped; the same command goes on with the cells that are not done.", file=sys.stderr)
        raise

  def _run_cell(self, name: str) -> tuple[str, bool, float]:
    run, fingerprint = self._plan[name]
    slot, started = self._free.get(), time.perf_counter()
    begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
      with tempfile.TemporaryDirectory(prefix="specdec-cell-") as folder:
        output, log_path = os.path.join(folder, "records.jsonl"), os.path.join(folder, "log")
        arguments = [*run.arguments(), *self._flags]
        command = [*_CHILD, str(os.getpid()), *arguments, f"--output={output}"]
        with open(log_path, "wb") as log:
          child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | slot)
          self._children.add(child)
          if self._stopped.is_set():
            child.terminate()
          code = child.wait()
          self._children.discard(child)
        with open(log_path, encoding="utf-8", errors="replace") as log:
          text = log.read()
        records = _read_records(output) if code == 0 else None
      if self._stopped.is_set():
        return name, False, 0.0  # Ended by us: the cell stays open.
      record = {
          "cell": self._cells[name],
          "fingerprint": fingerprint,
          "command": shlex.join(["python", "-m", "specdec.main", *arguments]),
          "started": begun,
          "seconds": round(time.perf_counter() - started, 1),
      }
      if records:
        self._results.finish(name, record | {"records": records}, text)
      else:
        error = "\n".join(text.strip().splitlines()[-_TAIL:]) if code else "it wrote no JSON records"
        self._results.fail(name, record | {"code": code, "error": error}, text)
      return name, bool(records), record["seconds"]
    finally:
      self._free.put(slot)


def _read_records(path: str) -> list[dict[str, Any]] | None:
  if not os.path.exists(path):
    return None
  try:
    with open(path, encoding="utf-8") as file:
      return [json.loads(line) for line in file]
  except ValueError:  # Another kind of output: this mode writes no records.
    return None


@contextlib.contextmanager
def _terminates():
  """Makes SIGTERM an interrupt, so that children are ended; only the main thread can."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return

  def interrupt(*_):
    raise KeyboardInterrupt

  before = signal.signal(signal.SIGTERM, interrupt)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)
