"""Every gin file parses, unknown names are errors, and each run file's own command resolves."""

import pathlib
import re
import shlex
import subprocess
import sys

from absl import flags
from absl.testing import flagsaver
import gin
import pytest

from specdec import main

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "gin"
FILES = sorted(FOLDER.rglob("*.gin"))
INSIDE_T5X = [path for path in FILES if re.search(r"^from t5x import", path.read_text(encoding="utf-8"), re.MULTILINE)]
RUNS = [path for path in sorted((FOLDER / "runs").glob("*.gin")) if path not in INSIDE_T5X]
ids = lambda path: path.relative_to(FOLDER).as_posix()

REQUIRED = re.compile(r"^(\w+) = %gin\.REQUIRED$", re.MULTILINE)
INCLUDE = re.compile(r"^include\s+['\"](.+)['\"]", re.MULTILINE)


@pytest.fixture(autouse=True)
def clean_gin():
  yield
  gin.clear_config(clear_constants=True)


def text_of(path: pathlib.Path) -> str:
  return path.read_text(encoding="utf-8")


def includes(path: pathlib.Path) -> list[pathlib.Path]:
  return [FOLDER / name for name in INCLUDE.findall(text_of(path))]


def dummies(path: pathlib.Path) -> list[str]:
  """A binding for each macro that the user must give."""
  names = {name for file in (path, *includes(path)) for name in REQUIRED.findall(text_of(file))}
  return [f"{name} = 'given'" for name in sorted(names)]


def command_of(path: pathlib.Path) -> list[str]:
  """The arguments of `python -m specdec.main` that the file's header shows."""
  header = "\n".join(line[1:] for line in text_of(path).splitlines() if line.startswith("#"))
  commands = [shlex.split(line) for line in header.replace("\\\n", " ").splitlines() if " --mode=" in line]
  assert commands, f"{ids(path)}: its header must show the command that runs it, on lines with '#'"
  start = commands[0].index("specdec.main") + 1
  return commands[0][start:]


def test_folders():
  assert {path.relative_to(FOLDER).parts[0] for path in FILES} <= {"models", "tasks", "drafters", "trees", "runs"}
  assert RUNS


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_file_parses(path):
  if path in INSIDE_T5X:
    pytest.importorskip("t5x", reason="T5X is not on PYTHONPATH (README.md, 'Where T5X comes in')")
  main.parse_gin([str(path)], dummies(path))


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_one_include_level(path):
  for included in includes(path):
    assert included.is_file(), f"{included} is missing; includes are named from gin/"
    assert not includes(included), f"{ids(path)} includes {ids(included)}, which includes more"


@pytest.mark.parametrize("path", RUNS, ids=ids)
def test_command_of_header_resolves(path, capsys):
  arguments = command_of(path)
  assert f"--gin_file=gin/runs/{path.name}" in arguments
  required = {binding.split(" = ")[0] for binding in dummies(path)}
  given = {argument.split("=")[0].removeprefix("--gin.") for argument in arguments}
  assert required <= given, "the command of the header must give each required macro"
  with flagsaver.flagsaver():
    flags.FLAGS(main.rewrite_gin_args(["specdec", *arguments, "--dry_run"]))
    main.main(["specdec"])
  printed = capsys.readouterr().out
  assert "gin.REQUIRED" not in printed
  assert all(f"{name} = " in printed for name in required)


def gin_file(folder: pathlib.Path, name: str, text: str) -> str:
  path = folder / name
  path.write_text(f"from __gin__ import dynamic_registration\nfrom specdec.networks import t5\n{text}\n")
  return str(path)


@pytest.mark.parametrize(
    "text",
    ["t5.T5Cfg.emb_dim = 4", "t5.T5Config.no_such_field = 4", "nowhere.T5Config.emb_dim = 4", "t5.T5Config.emb_dim = %SIZE"],
)
def test_unknown_name_is_an_error(text, tmp_path):
  with pytest.raises((ValueError, NameError, AttributeError)):
    main.parse_gin([gin_file(tmp_path, "bad.gin", text)], [])
  gin.clear_config(clear_constants=True)
  with pytest.raises((ValueError, NameError, AttributeError)):
    main.parse_gin([gin_file(tmp_path, "good.gin", "t5.T5Config.head_dim = 4")], [text])


def test_later_file_and_then_binding_wins(tmp_path):
  files = [gin_file(tmp_path, f"{size}.gin", f"t5.T5Config.emb_dim = {size}") for size in (2, 4)]
  main.parse_gin(files, [])
  assert gin.query_parameter("t5.T5Config.emb_dim") == 4
  main.parse_gin(files, ["t5.T5Config.emb_dim = 8"])
  assert gin.query_parameter("t5.T5Config.emb_dim") == 8


@pytest.mark.parametrize("prefix", ["runs/", "gin/runs/"])
def test_run_file_is_found_from_any_folder(prefix, tmp_path):
  """As the console command starts: nothing is imported first, not even importlib.util, which gin takes as given."""
  path = RUNS[0]
  bare = "import importlib, sys; sys.modules.pop('importlib.util', None); vars(importlib).pop('util', None)"
  code = f"{bare}; sys.path.insert(0, {str(ROOT)!r}); from specdec import main; main.run()"
  arguments = [argument.replace("gin/runs/", prefix) for argument in command_of(path)]
  run = subprocess.run(
      [sys.executable, "-c", code, *arguments, "--dry_run"], cwd=tmp_path, capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stderr
  assert " = " in run.stdout


def test_search_paths_come_before_our_own_files(tmp_path, monkeypatch):
  """As in T5X: one's own copy of an included file is the one that counts."""
  monkeypatch.chdir(tmp_path)
  own = tmp_path / "mine" / "models" / "ende.gin"
  own.parent.mkdir(parents=True)
  own.write_text(text_of(FOLDER / "models" / "ende.gin") + "\ntarget/t5.T5Config.emb_dim = 7\n")
  for search_paths, expected in (([], 384), ([str(tmp_path / "mine")], 7), ([], 384)):
    main.parse_gin(["runs/demo.gin"], [], search_paths)
    assert gin.query_parameter("target/t5.T5Config.emb_dim") == expected
