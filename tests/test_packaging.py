"""What travels in a built package, and what setup.py asks for."""

import ast
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
GIN = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gin").rglob("*.gin")}
PRETRAINED = {path.relative_to(ROOT).as_posix() for path in (ROOT / "specdec" / "pretrained").rglob("*") if path.is_file()}
MODULES = {path.relative_to(ROOT).as_posix() for path in (ROOT / "specdec").rglob("*.py")}
# Import names whose distribution has another name.
DISTRIBUTION = {"absl": "absl-py", "gin": "gin-config", "orbax": "orbax-checkpoint", "rouge_score": "rouge-score"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
  """A copy of what the packages are built from, so that no build folder is left in the checkout."""
  folder = tmp_path_factory.mktemp("sources of specdec")
  for name in ("setup.py", "LICENSE", "README.md"):
    if (ROOT / name).exists():
      shutil.copy(ROOT / name, folder)
  for name in ("specdec", "gin"):
    shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
  hidden = folder / "specdec" / "pretrained" / "probe" / ".hidden" / "weight[0]"
  hidden.parent.mkdir(parents=True)
  hidden.write_text("weights may lie in hidden files and folders")
  return folder


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
  """The wheel, built from an unpacked source distribution as an index would serve it, unpacked."""
  folder = tmp_path_factory.mktemp("wheel")
  subprocess.run([sys.executable, "setup.py", "-q", "sdist", "-d", folder], cwd=sources, check=True, capture_output=True)
  with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
    archive.extractall(folder / "sdist", filter="data")
  pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder]
  subprocess.run([*pip, next((folder / "sdist").iterdir())], check=True, capture_output=True)
  with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
    archive.extractall(folder / "installed")
  return folder / "installed"


def files_in(folder):
  return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_wheel_holds_code_gin_files_and_weights(wheel):
  expected = MODULES | PRETRAINED | {f"specdec/{name}" for name in GIN} | {"specdec/pretrained/probe/.hidden/weight[0]"}
  installed = {name for name in files_in(wheel) if ".dist-info/" not in name}
  assert installed == expected
  assert GIN and MODULES


def test_wheel_holds_license_and_command(wheel):
  names = {name.split(".dist-info/")[1]: name for name in files_in(wheel) if ".dist-info/" in name}
  license_file = next(name for name in names if name.endswith("LICENSE"))
  assert (wheel / names[license_file]).read_text() == (ROOT / "LICENSE").read_text()
  assert "specdec = specdec.main:run" in (wheel / names["entry_points.txt"]).read_text()


def test_gin_files_of_the_wheel_are_found(wheel, tmp_path):
  code = f"import sys; sys.path.insert(0, {str(wheel)!r}); from specdec import main; print(main.gin_folder()); main.run()"
  arguments = ["--mode=decode", "--gin_file=runs/demo.gin", "--dry_run"]
  run = subprocess.run(
      [sys.executable, "-P", "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stderr
  assert run.stdout.splitlines()[0] == str(wheel / "specdec" / "gin")
  assert " = " in run.stdout  # A binding.


def declared():
  """Distribution names and ranges that setup.py asks for, without running it."""
  lists = {}
  for node in ast.parse((ROOT / "setup.py").read_text()).body:
    if isinstance(node, ast.Assign) and node.targets[0].id in ("INSTALL_REQUIRES", "EXTRAS_REQUIRE"):
      lists[node.targets[0].id] = ast.literal_eval(node.value)
  requirements = [*lists["INSTALL_REQUIRES"], *(r for extra in lists["EXTRAS_REQUIRE"].values() for r in extra)]
  return {re.match(r"[\w-]+", requirement)[0]: requirement for requirement in requirements}


def test_every_import_is_declared():
  imported = set()
  for name in MODULES:
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
      if isinstance(node, ast.Import):
        imported |= {alias.name.split(".")[0] for alias in node.names}
      elif isinstance(node, ast.ImportFrom) and node.level == 0:
        imported.add(node.module.split(".")[0])
  foreign = {DISTRIBUTION.get(name, name) for name in imported - set(sys.stdlib_module_names) - {"specdec", "t5x"}}
  assert not foreign - set(declared()), "setup.py does not ask for what specdec imports"


def test_constraints_pin_what_setup_asks_for():
  packaging = pytest.importorskip("packaging.requirements")
  lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
  assert all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in lines)
  pins = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
  for name, requirement in declared().items():
    if name in ("libtpu", "torch", "transformers"):
      continue  # Extras outside the tested installation.
    assert packaging.Requirement(requirement).specifier.contains(pins[name]), f"{requirement} against {pins[name]}"
