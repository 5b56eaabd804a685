"""Every grid of configs/ loads, each of its cells resolves by the command it shows, and its published values are the paper's."""

import ast
import pathlib
import re

import pytest

from configs import published
from specdec.benchmark import grid as grid_lib
from tests.modes.tiny import call_main

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "configs"
# The tables of DySpec are one run of --mode=trees, and no sweep; tests/benchmark/test_lines.py reads them.
GRIDS = sorted(p for p in CONFIGS.glob("*.py") if p.name not in ("published.py", "__init__.py", "dyspec_tables.py"))
NAMES = {path.stem for path in GRIDS}


@pytest.fixture(scope="module", params=GRIDS, ids=lambda path: path.stem)
def grid(request):
  return request.param, grid_lib.load(str(request.param))


def test_the_four_tables_are_here_at_both_scales():
  assert {"leviathan_table2", "leviathan_table3", "leviathan_lenience", "leviathan_table4"} <= NAMES
  assert {"demo_table2", "demo_table3", "demo_lenience", "demo_table4"} <= NAMES


def test_header_states_command_hardware_minutes_and_expectation(grid):
  path, found = grid
  header = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
  assert all(word in header for word in ("Command", "Hardware:", "Minutes:", "Expected:"))
  assert f"--grid=configs/{path.name}" in header and f"--grid=configs/{path.name}" in found["command"]
  assert found["name"] == path.stem and found["minutes"] > 0


def test_every_cell_resolves(grid, tmp_path, capsys):
  path, found = grid
  required = sorted(set(re.findall(r"(\w+) = %gin\.REQUIRED", repr(found))))
  given = [f"--gin.{name}='given'" for name in (*required, "VOCABULARY_PATH")]
  arguments = ("--mode=sweep", f"--grid={path}", f"--output={tmp_path}/results", "--dry_run")
  assert call_main(*arguments, *given) is None
  printed = capsys.readouterr().out
  assert all(f"# {cell['name']}: open, would run" in printed for cell in found["cells"])
  assert not (tmp_path / "results").exists()
  if required:
    assert "expected values for" in call_main(*arguments)


def test_quantities_are_named_well(grid):
  _, found = grid
  for quantity in found["quantities"]:
    assert {"name", "measured"} <= set(quantity) <= {
        "name", "measured", "error", "low", "high", "predicted", "published", "digits"
    }  # fmt: skip
  keys = {q["published"] for q in found["quantities"] if "published" in q}
  printed = [values for cell in found["cells"] for values in cell["published"]]
  assert all(keys & set(values) for values in printed)


def test_published_values_of_table_2_come_from_the_table():
  cells = grid_lib.load(str(CONFIGS / "leviathan_table2.py"))["cells"]
  rows = {(r.task, r.drafter, r.temperature, r.gamma): (r.alpha, r.measured) for r in published.TABLES_2_AND_4}
  found = {}
  for cell in cells:
    labels = cell["labels"]
    (values,) = cell["published"]
    if values["when"]["gamma"] == labels["gamma"]:
      key = (labels["task"], labels["draft"], labels["temperature"], labels["gamma"])
      found[key] = (values["alpha"], values["speed"])
  assert found == rows
