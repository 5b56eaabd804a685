"""`--mode=report`: records of sweeps as a self-contained HTML page and as Markdown."""

from collections.abc import Sequence
import os

from absl import logging
from etils import epath

from specdec.benchmark import figures as figures_lib
from specdec.benchmark import grid as grid_lib
from specdec.benchmark import page
from specdec.benchmark import results


def report(
    input: str | Sequence[str],
    output: str,
    title: str = "Speculative decoding: published, predicted, measured",
    grids: Sequence[str] = (),
) -> None:
  """Writes `index.html`, `README.md`, `overview.md` and the figures.

  Args:
    input: folders that `--mode=sweep` wrote, several with commas between.
    output: the folder to write, any path that `etils.epath` opens.
    title: of the pages.
    grids: grid files; those that have no results here are listed in
      `overview.md` with the hardware and the command they need.

  Raises:
    ValueError: a folder without a sweep, or a bad grid file.
  """
  from specdec.benchmark import plots  # matplotlib takes a second to import.

  folders = [name for name in input.split(",") if name] if isinstance(input, str) else list(input)
  if not folders:
    raise ValueError("input: expected at least one folder that --mode=sweep wrote, found none.")
  sweeps = [results.read(folder) for folder in folders]
  every = [grid_lib.load(path) for path in grids]
  pictures, files = [], []
  for sweep in sweeps:
    drawn = {
        name: (caption, plots.to_svg(figure, f"{sweep.grid['name']}-{name}"))
        for name, (caption, figure) in figures_lib.figures(sweep).items()
    }
    pictures.append(drawn)
    paths = {f"figures/{sweep.grid['name']}-{name}.svg": caption for name, (caption, _) in drawn.items()}
    files.append(paths)
    for path, (_, svg) in zip(paths, drawn.values()):
      _write(output, path, svg)
  _write(output, "index.html", page.to_html(sweeps, pictures, title))
  _write(output, "README.md", page.to_markdown(sweeps, files, title))
  _write(output, "overview.md", page.overview(sweeps, every, "What was reproduced here, and what needs other hardware"))
  logging.info("%d sweeps into %s.", len(sweeps), epath.Path(output) / "index.html")


def _write(folder: str, name: str, text: str) -> None:
  path = epath.Path(folder) / name
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.parent / f"{path.name}.{os.getpid()}.partial"
  partial.write_text(text)
  partial.replace(path)
