"""Gin in the manner of T5X: where files are looked for, how they are parsed, and what a record keeps of them."""

from collections.abc import Callable, Sequence
import importlib.util  # noqa: F401  (gin uses it and does not import it)
import os
import re
from typing import Any

import gin

from specdec.benchmark import report


def folder() -> str:
  """The folder of the gin files: inside the package when installed, beside it in a checkout."""
  package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  inside = os.path.join(package, "gin")
  return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(package), "gin")


def _tolerant(exists: Callable[[str], bool]) -> Callable[[str], bool]:
  """gin also looks for a file in packages, and stumbles over a mere folder of that name in the working folder."""

  def check(path: str) -> bool:
    try:
      return exists(path)
    except TypeError:  # A package without an origin.
      return False

  check.tolerant = True
  return exists if hasattr(exists, "tolerant") else check  # A second `parse` does not wrap it again.


def parse(files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str] = ()) -> None:
  """Parses files, then bindings; paths are relative to the working folder, the search paths, or ours."""
  ours = folder()
  gin.clear_config(clear_constants=True)
  gin.config._FILE_READERS[:] = [(read, _tolerant(exists)) for read, exists in gin.config._FILE_READERS]
  del gin.config._LOCATION_PREFIXES[1:]  # Of an earlier call; gin has no public way to forget them.
  for path in (*search_paths, ours, os.path.dirname(ours)):
    gin.add_config_file_search_path(path)
  gin.parse_config_files_and_bindings(list(files), list(bindings), skip_unknown=False)


def check_macros(names: Sequence[str]) -> None:
  """Refuses macros that nothing in the parsed configuration reads: gin would take a misspelt one in silence.

  Raises:
    ValueError: with the macros that are read.
  """
  read = set(re.findall(r"%(?:\w+/)*([A-Za-z_]\w*)", gin.config_str()))
  for name in names:
    if name not in read:
      found = f"the gin files read {', '.join(sorted(read))}" if read else "the gin files read no macro"
      raise ValueError(f"--gin.{name}: expected a macro that something reads, found one that nothing does; {found}.")


def provenance() -> dict[str, Any]:
  """What a record needs to be repeated: the environment, and the configuration as gin resolved it.

  The configuration holds every value that was used, defaults too; it is empty
  where a mode was called from Python.
  """
  return {**report.environment(), "gin": gin.operative_config_str()}
