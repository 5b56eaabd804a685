"""The layout of design.md: who imports whom, what `import specdec` costs, how long files are."""

import ast
import functools
import importlib
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "specdec"
FILES = sorted(PACKAGE.rglob("*.py"))
ids = lambda path: path.relative_to(ROOT).as_posix()

ANY = None
# What a room may import of specdec besides itself. The longest name that fits a module counts.
MAY_IMPORT = {
    "specdec": ANY,  # The public names.
    "specdec.probability": (),
    "specdec.networks": (),
    "specdec.data": (),
    "specdec.sharding": ANY,
    "specdec.sharding.rules": (),
    "specdec.trees": ("probability",),
    "specdec.checkpoints": ("networks",),
    "specdec.training": ("networks", "probability"),
    "specdec.interfaces": ("trees.topology",),
    "specdec.theory": ("probability", "trees"),
    "specdec.acceptance": ("interfaces", "probability", "trees"),
    "specdec.drafters": ("interfaces", "probability", "trees"),
    "specdec.step": ("interfaces", "trees"),
    "specdec.autoregressive": ("interfaces", "probability", "trees.topology"),
    "specdec.beam_search": ("interfaces", "trees.topology"),
    "specdec.loop": ("interfaces",),
    "specdec.adapters": ("interfaces", "networks", "loop", "trees"),
    "specdec.adapters.t5x_model": ("interfaces", "networks", "loop", "probability"),  # T5X's settings become ours.
    "specdec.recipes": ANY,
    "specdec.models": ANY,  # A network, its weights and its vocabulary; above the rooms, as recipes are.
    "specdec.benchmark": ANY,
    "specdec.modes": ANY,
    "specdec.main": ANY,
}
# Packages that take long to import, or that most users lack, and the only places that import them.
ONLY_IN = {
    "seqio": ("specdec/data/tasks.py",),
    "tensorflow": ("specdec/data/tasks.py",),
    "t5x": ("specdec/adapters/t5x_model.py",),
    "matplotlib": ("specdec/benchmark/plots.py",),
    "orbax": ("specdec/checkpoints/", "specdec/training/checkpoints.py"),
    "torch": ("specdec/checkpoints/from_huggingface.py",),
    "safetensors": ("specdec/checkpoints/from_huggingface.py",),
    "gin": ("specdec/main.py", "specdec/modes/"),
}
OUTSIDE = ("configs", "launch", "notebooks", "tests")
# What modules may need that the tests do not install.
OPTIONAL = ("libtpu", "t5x", "torch", "transformers")
SLOW = ("tensorflow", "seqio", "t5x", "torch", "transformers", "matplotlib", "orbax", "flax", "optax", "clu", "gin")


def module_name(path: pathlib.Path) -> str:
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


@functools.cache
def imports(path: pathlib.Path) -> frozenset[str]:
  """Every module that the file imports, inside functions too; names of specdec resolved to modules."""
  package = module_name(path).split(".")
  if path.name != "__init__.py":
    package = package[:-1]
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      base = package[: len(package) - node.level + 1] if node.level else []
      origin = ".".join([*base, *([node.module] if node.module else [])])
      names = {f"{origin}.{alias.name}" for alias in node.names}
      found |= {name if name in MODULES else origin for name in names}
  return frozenset(found)


def within(module: str, room: str) -> bool:
  return module == room or module.startswith(room + ".")


def room_of(module: str) -> str:
  """The row of MAY_IMPORT that counts for `module`."""
  rooms = [room for room in MAY_IMPORT if within(module, room) and (room != "specdec" or module == "specdec")]
  assert rooms, f"{module} is in no room of MAY_IMPORT; give it a row there"
  return max(rooms, key=len)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_import_directions(path):
  module = module_name(path)
  room = room_of(module)
  if MAY_IMPORT[room] is ANY:
    return
  home = ".".join(room.split(".")[:2])  # A row for one file speaks of other rooms, not of its own.
  allowed = [home, *(f"specdec.{name}" for name in MAY_IMPORT[room])]
  inner = {name for name in imports(path) if within(name, "specdec")}
  wrong = sorted(name for name in inner if not any(within(name, room) for room in allowed))
  assert not wrong, f"{module} may import {allowed}, and imports {wrong}"


def test_rows_name_rooms():
  named = {f"specdec.{name}" for allowed in MAY_IMPORT.values() for name in allowed or ()}
  assert not {name for name in named if not any(within(module, name) for module in MODULES)}


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_nothing_outside_the_package_is_imported(path):
  assert not {name for name in imports(path) if name.split(".")[0] in OUTSIDE}


@pytest.mark.parametrize("package", ONLY_IN)
def test_package_is_imported_in_one_place(package):
  users = {ids(path) for path in FILES if any(within(name, package) for name in imports(path))}
  strangers = sorted(user for user in users if not user.startswith(ONLY_IN[package]))
  assert not strangers, f"{package} belongs in {ONLY_IN[package]}, and is imported by {strangers}"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_size_and_name(path):
  lines = len(path.read_text(encoding="utf-8").splitlines())
  assert lines <= 500, "a file is split at 500 lines"
  assert path.name not in ("utils.py", "util.py", "helpers.py", "common.py", "misc.py")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_imports(module):
  try:
    importlib.import_module(module)
  except ModuleNotFoundError as error:
    if error.name not in OPTIONAL:
      raise
    pytest.skip(f"needs {error.name}")


IMPORT_SPECDEC = """
import json, sys, time
start = time.process_time()
import specdec
seconds = time.process_time() - start
print(json.dumps([seconds, sorted({name.split(".")[0] for name in sys.modules})]))
"""


def test_import_is_quick_and_light():
  best = float("inf")
  for _ in range(3):  # CPU seconds, and the best of three: other tests run beside this one.
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_SPECDEC], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, loaded = json.loads(run.stdout)
    assert not set(SLOW) & set(loaded), f"import specdec pulls in {sorted(set(SLOW) & set(loaded))}"
    best = min(best, seconds)
    if best < 1.5:
      break
  assert best < 1.5
