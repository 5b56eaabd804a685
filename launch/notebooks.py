"""Runs the notebooks, and keeps them as .ipynb with their outputs.

  python launch/notebooks.py [NAME …] [--output=FOLDER] [--no_execute]

The text, notebooks/NAME.py (jupytext, percent format), is what is edited; notebooks/NAME.ipynb is made from it. Needs the
extra `test`.
"""

import argparse
import os
import pathlib
import sys
import time

import jupytext
import nbclient
import nbformat

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"


def names() -> list[str]:
  """Every notebook there is."""
  return sorted(path.stem for path in FOLDER.glob("*.py"))


def read(name: str) -> nbformat.NotebookNode:
  """The notebook of a text, without outputs; cell ids are their numbers, so that the file does not change by itself."""
  notebook = jupytext.read(FOLDER / f"{name}.py")
  for number, cell in enumerate(notebook.cells):
    cell["id"] = f"cell-{number}"
  notebook.metadata.pop("jupytext", None)
  return notebook


def execute(notebook: nbformat.NotebookNode, timeout: int = 600) -> None:
  """Runs every cell in the checkout, by the Python that runs this; the first error is raised with its traceback."""
  environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
  client = nbclient.NotebookClient(
      notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
  )
  client.execute(env=environment)
  for cell in notebook.cells:  # When each ran is of no interest to a reader.
    cell.metadata.pop("execution", None)


def write(notebook: nbformat.NotebookNode, path: pathlib.Path) -> None:
  """Writes a notebook whole or not at all."""
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_suffix(".ipynb.partial")
  nbformat.write(notebook, partial)
  partial.replace(path)


def main(arguments: list[str]) -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="*", default=[], help="of notebooks; all when none is given")
  parser.add_argument("--output", type=pathlib.Path, default=FOLDER, help="folder of the .ipynb files")
  parser.add_argument("--no_execute", action="store_true", help="write them without outputs")
  given = parser.parse_args(arguments)
  unknown = sorted(set(given.names) - set(names()))
  if unknown:
    parser.error(f"expected names among {names()}, found {unknown}")
  for name in given.names or names():
    notebook, started = read(name), time.perf_counter()
    if not given.no_execute:
      execute(notebook)
    write(notebook, given.output / f"{name}.ipynb")
    print(f"{name}: {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
  main(sys.argv[1:])
