"""The notebooks: text and .ipynb agree, the first cell installs, every cell compiles; with --heavy all of them run."""

import ast
import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
jupytext = pytest.importorskip("jupytext")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

_SPEC = importlib.util.spec_from_file_location("launch_notebooks", ROOT / "launch" / "notebooks.py")
launch = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(launch)
NAMES = ("choose_a_draft", "quickstart", "reproduce_leviathan", "why_it_is_exact")


def test_they_are_all_here():
  assert tuple(launch.names()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_ipynb_has_the_cells_of_the_text(name):
  text, kept = launch.read(name), nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
  nbformat.validate(kept)
  cells = lambda notebook: [(cell.cell_type, cell.source) for cell in notebook.cells]
  assert cells(kept) == cells(text), f"run `python launch/notebooks.py {name}`"


@pytest.mark.parametrize("name", NAMES)
def test_first_cell_installs_and_all_compile(name):
  code = [cell.source for cell in launch.read(name).cells if cell.cell_type == "code"]
  assert 'find_spec("specdec") is None' in code[0] and '"pip", "install"' in code[0]
  for source in code:
    ast.parse(source)
  imported = re.findall(r"^from (specdec[\w.]*) import (\w+)", "\n".join(code), flags=re.MULTILINE)
  for module, attribute in imported:
    found = importlib.import_module(module)
    assert hasattr(found, attribute) or importlib.util.find_spec(f"{module}.{attribute}"), (module, attribute)


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name):
  notebook = launch.read(name)
  launch.execute(notebook, timeout=300)
  outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
  assert outputs and not [output for output in outputs if output.output_type == "error"]
  if name != "quickstart":
    assert any({"image/png", "image/svg+xml"} & set(output.get("data", {})) for output in outputs), "it has pictures"
