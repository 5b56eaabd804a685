"""What every test shares: the CPU, the checkout on the path, the data beside it, the marker `heavy`."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
# Cheapest first: what fails in a second should not wait for what takes minutes.
FIRST = ("tests/test_layout.py", "specdec/", "tests/")
LAST = ("tests/test_gin.py", "tests/test_packaging.py")

# Before anything imports jax or TensorFlow; also for the processes that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(ROOT))


def pytest_addoption(parser):
  parser.addoption("--heavy", action="store_true", help="also run the tests that take minutes")


def pytest_collection_modifyitems(config, items):
  if not config.getoption("--heavy"):
    heavy = [item for item in items if item.get_closest_marker("heavy")]
    config.hook.pytest_deselected(items=heavy)
    items[:] = [item for item in items if not item.get_closest_marker("heavy")]
  items.sort(key=_cost)


def _cost(item) -> tuple[bool, int]:
  path = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
  late = path in LAST or item.get_closest_marker("heavy") is not None
  return late, next((i for i, start in enumerate((*FIRST, "")) if path.startswith(start)))


@pytest.fixture(scope="session")
def shared():
  """`shared("data/multi30k")`: that path in the folder beside the checkout; skips the test where it is missing."""

  def path(name: str = "") -> pathlib.Path:
    found = SHARED / name
    if not found.exists():
      pytest.skip(f"shared/{name} is not beside the checkout")
    return found

  return path


@pytest.fixture(autouse=True, scope="module")
def forget_compilations():
  """Frees what a module compiled: each program holds memory maps, and a process may have some 65,000 of them."""
  yield
  import jax

  jax.clear_caches()
