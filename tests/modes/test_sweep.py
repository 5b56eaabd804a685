"""`--mode=sweep`: every cell once, whole records, and the same after a kill at any moment."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import gin
import pytest

from specdec.benchmark import devices
from specdec.benchmark import grid as grid_lib
from specdec.modes import sweep
from tests.modes.tiny import call_main

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHILD = ROOT / "tests" / "modes" / "sweep_child.py"


@pytest.fixture
def notes(tmp_path, monkeypatch):
  monkeypatch.setenv("SWEEP_NOTES", str(tmp_path))
  monkeypatch.setattr(sweep, "_CHILD", (sys.executable, str(CHILD)))
  yield tmp_path
  gin.clear_config(clear_constants=True)


def write_grid(folder, acts, **fields):
  cells = [
      {"name": name, "labels": {"draft": name}, "bindings": [f"NAME = '{name}'", f"ACT = '{act}'"]}
      for name, act in acts.items()
  ]
  grid = dict(
      name="test", title="A test", source="none", command="none", hardware="any", minutes=1, comparable=True,
      mode="fit_ngram", quantities=[{"name": "alpha", "measured": "alpha"}], cells=cells,
  )  # fmt: skip
  path = folder / "grid.py"
  path.write_text(f"GRID = {grid | fields!r}\n")
  return str(path)


def ran(folder):
  path = folder / "ran"
  return path.read_text().split() if path.exists() else []


def test_each_cell_once(notes):
  grid, output = write_grid(notes, {"a": "fine", "b": "fine"}), notes / "results"
  assert sweep.sweep(grid, str(output)) == {"done": ["a", "b"]}
  assert sorted(ran(notes)) == ["a", "b"]
  record = json.loads((output / "cells" / "a.json").read_text())
  assert record["records"] == [{"alpha": 0.5, "act": "fine", "slot": None}]
  assert record["cell"]["labels"] == {"draft": "a"}
  assert "--mode=fit_ngram" in record["command"] and "--output" not in record["command"]
  assert sorted(p.name for p in output.rglob("*") if p.is_file()) == ["a.json", "a.log", "b.json", "b.log", "grid.json"]
  assert sweep.sweep(grid, str(output)) == {"done": ["a", "b"]}
  assert len(ran(notes)) == 2, "what is done does not run again"
  sweep.sweep(grid, str(output), cells="b", retry="all")
  assert ran(notes)[2:] == ["b"]


def test_failures_are_kept_and_retried_on_request(notes, capsys):
  grid, output = write_grid(notes, {"a": "fail", "b": "fine"}), notes / "results"
  with pytest.raises(ValueError, match="1 of 2 cells failed: a.*--retry=failed"):
    sweep.sweep(grid, str(output))
  assert "a: failed: specdec: it went wrong" in capsys.readouterr().err
  failure = json.loads((output / "failed" / "a.json").read_text())
  assert (failure["code"], failure["error"]) == (1, "warming up\nspecdec: it went wrong")
  with pytest.raises(ValueError, match="1 of 2 cells failed"):
    sweep.sweep(grid, str(output))
  assert sorted(ran(notes)) == ["a", "b"], "not without being asked to"
  (notes / "mended").touch()
  assert sweep.sweep(grid, str(output), retry="failed") == {"done": ["a", "b"]}
  assert sorted(ran(notes)) == ["a", "a", "b"] and not list((output / "failed").iterdir())


def test_other_settings_are_an_error_until_asked_for(notes):
  grid, output = write_grid(notes, {"a": "fine", "b": "fine"}), notes / "results"
  sweep.sweep(grid, str(output))
  grid = write_grid(notes, {"a": "fine", "b": "other"})
  with pytest.raises(ValueError, match="b in .* ran with other settings"):
    sweep.sweep(grid, str(output))
  sweep.sweep(grid, str(output), retry="changed")
  assert sorted(ran(notes)) == ["a", "b", "b"]
  assert json.loads((output / "cells" / "b.json").read_text())["records"][0]["act"] == "other"
  with pytest.raises(ValueError, match="a, b in .* ran with other settings"):
    sweep.sweep(grid, str(output), gin_bindings=["ACT = 'third'"])


def test_a_killed_sweep_goes_on(notes):
  """Killed without warning while a cell has written half a record; its child ends too."""
  grid, output = write_grid(notes, {"a": "fine", "b": "hang", "c": "fine"}), notes / "results"
  environment = os.environ | {"PYTHONPATH": str(ROOT)}
  command = [sys.executable, "-m", "tests.modes.sweep_child", "--sweep", grid, str(output)]
  run = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
  deadline = time.monotonic() + 240
  while not (notes / "hanging").exists() or not (notes / "hanging").read_text():
    assert run.poll() is None and time.monotonic() < deadline, run.stderr.read().decode()
    time.sleep(0.05)
  run.send_signal(signal.SIGKILL)
  run.communicate()
  assert [p.name for p in (output / "cells").iterdir()] == ["a.json"]
  child = int((notes / "hanging").read_text())
  while pathlib.Path(f"/proc/{child}").exists() and "Z" not in pathlib.Path(f"/proc/{child}/stat").read_text().split()[2]:
    assert time.monotonic() < deadline
    time.sleep(0.05)
  (notes / "mended").touch()
  assert sweep.sweep(grid, str(output)) == {"done": ["a", "b", "c"]}
  assert ran(notes) == ["a", "b", "b", "c"]


def test_cells_run_side_by_side(notes):
  grid = write_grid(notes, {"a": "meet", "b": "meet"})
  assert sweep.sweep(grid, str(notes / "results"), parallel=2) == {"done": ["a", "b"]}


def test_hosts_share_the_cells(notes):
  grid, output = write_grid(notes, dict.fromkeys("abcde", "fine")), str(notes / "results")
  assert sweep.sweep(grid, output, host=1, hosts=2, parallel=2) == {"done": ["b", "d"]}
  assert not (notes / "results" / "grid.json").exists(), "the first host's to write"
  assert sweep.sweep(grid, output, host=0, hosts=2, parallel=2) == {"done": ["a", "c", "e"]}
  assert sorted(ran(notes)) == list("abcde")


def test_dry_run_resolves_and_runs_nothing(notes, capsys):
  grid, output = write_grid(notes, {"a": "fine", "b": "fine"}), notes / "results"
  assert call_main("--mode=sweep", f"--grid={grid}", f"--output={output}", "--dry_run", "--cells=a") is None
  printed = capsys.readouterr().out
  assert "# a: open, would run" in printed and "--mode=fit_ngram" in printed and "# b" not in printed
  assert not output.exists() and not ran(notes)


def test_what_does_not_resolve_is_said_before_anything_runs(notes):
  grid, output = write_grid(notes, {"a": "fine"}, bindings=["A = %gin.REQUIRED", "B = %gin.REQUIRED"]), str(notes / "results")
  with pytest.raises(ValueError, match="cell a: expected values for A, B; give --gin.A=… --gin.B=…"):
    sweep.sweep(grid, output)
  with pytest.raises(ValueError, match="cell a: expected values for B; give --gin.B=…"):
    sweep.sweep(grid, output, gin_bindings=["A = 1"])
  grid = write_grid(notes, {"a": "fine"}, gin_files=["gone.gin"])
  with pytest.raises(ValueError, match="(?s)cell a: .*gone.gin"):
    sweep.sweep(grid, output)
  assert not ran(notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(surprise=1), r"unknown fields \['surprise'\]"),
        (dict(cells=[]), "expected cells of different names"),
        (dict(cells=[{"name": "a"}, {"name": "a"}]), r"found \['a'\]"),
        (dict(cells=[{"name": "a/b"}]), "expected cell names of letters"),
        (dict(cells=[{"name": "a", "gamma": 3}]), r"unknown fields \['gamma'\]"),
    ],
)
def test_bad_grids(notes, change, message):
  with pytest.raises(ValueError, match=message):
    grid_lib.load(write_grid(notes, {"a": "fine"}, **change))


def test_bad_arguments(notes):
  grid, output = write_grid(notes, {"a": "fine"}), str(notes / "results")
  for arguments, message in (
      (dict(host=2, hosts=2), r"host: expected a number in \[0, 2\)"),
      (dict(retry="maybe"), "retry: expected one of"),
      (dict(cells="z"), "no cell's name matches 'z'"),
      (dict(cells="("), "expected a regular expression"),
      (dict(parallel=-1), "expected at least 0"),
  ):
    with pytest.raises(ValueError, match=message):
      sweep.sweep(grid, output, **arguments)
  with pytest.raises(ValueError, match="expected a Python file at gone.py"):
    sweep.sweep("gone.py", output)
  (notes / "broken.py").write_text("GRID = 1 / 0")
  with pytest.raises(ValueError, match="ZeroDivisionError"):
    sweep.sweep(str(notes / "broken.py"), output)


def test_slots():
  cpu, tpu, gpu = devices.Host("cpu", 1), devices.Host("tpu", 4), devices.Host("gpu", 8)
  assert devices.slots(cpu, 0, 0, timed=True) == [{}], "what measures time runs alone"
  assert len(devices.slots(cpu, 3, 0, timed=True)) == 3
  assert devices.slots(tpu, 0, 0, timed=True) == [{}], "a cell that needs the whole host has it"
  shares = devices.slots(tpu, 0, 1, timed=True)
  assert [s["TPU_VISIBLE_CHIPS"] for s in shares] == ["0", "1", "2", "3"]
  assert shares[0]["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
  assert [s["TPU_VISIBLE_CHIPS"] for s in devices.slots(tpu, 2, 0, timed=True)] == ["0,1", "2,3"]
  assert [s["CUDA_VISIBLE_DEVICES"] for s in devices.slots(gpu, 0, 4, timed=False)] == ["0,1,2,3", "4,5,6,7"]
  for bad in ((tpu, 8, 1), (tpu, 2, 4), (tpu, 0, 8)):
    with pytest.raises(ValueError, match="expected processes that fit"):
      devices.slots(*bad, timed=True)
