"""`specdec.main`: flags and gin in, one message and an exit code out."""

import pathlib
import re
import subprocess
import sys

import gin
import pytest

from specdec import main
from tests.modes.tiny import call_main, compiled_once, pair_files, tiny  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[1]
RUNS = sorted((ROOT / "gin" / "runs").glob("*.gin"))


@pytest.fixture(autouse=True)
def clean_gin():
  yield
  gin.clear_config(clear_constants=True)


def test_gin_arguments_are_rewritten_as_in_t5x():
  arguments = ["specdec", "--mode=train", "--gin.a.b=1", "--gin.M='x=y'", "--gin_file=f", "--output=--gin.c=1"]
  assert main.rewrite_gin_args(arguments) == [
      "specdec", "--mode=train", "--gin_bindings=a.b = 1", "--gin_macro=M", "--gin_bindings=M = 'x=y'", "--gin_file=f",
      "--output=--gin.c=1",
  ]  # fmt: skip
  with pytest.raises(ValueError, match="--gin.a.b: expected --gin.NAME=value"):
    main.rewrite_gin_args(["--gin.a.b"])


@pytest.mark.parametrize("mode", sorted(main.MODES))
def test_modes_say_what_they_lack(mode):
  message = call_main(f"--mode={mode}")
  assert message.startswith(f"specdec: --mode={mode}: expected values for ") and "--gin_file" in message


def test_unknown_arguments_of_a_mode():
  with pytest.raises(ValueError, match="--mode=export: expected no --input; this mode has no such argument"):
    main.run_mode("export", input="x")


def test_a_misspelt_macro_is_refused(tmp_path):
  path = tmp_path / "run.gin"
  path.write_text(
      "from __gin__ import dynamic_registration\nfrom specdec.modes import decode\n"
      "GAMMAS = 3\nFILE = 'gone.txt'\ndecode.decode.gamma = %GAMMAS\ndecode.decode.input = %FILE\n"
  )
  message = call_main("--mode=decode", f"--gin_file={path}", "--gin.GAMMA=0")
  assert message == (
      "specdec: --gin.GAMMA: expected a macro that something reads, found one that nothing does; "
      "the gin files read FILE, GAMMAS."
  )
  assert call_main("--mode=decode", f"--gin_file={path}", "--gin.GAMMAS=0", "--dry_run") is None


def test_overrides_win(tiny, tmp_path):
  """`--input` and `--output` win over the gin file, a later file over an earlier one, a binding over both."""
  first, later = pathlib.Path(tiny.gin("decode")), tmp_path / "later.gin"
  later.write_text(
      "from __gin__ import dynamic_registration\nfrom specdec.modes import decode\n"
      "decode.decode.gamma = 0\ndecode.decode.input = 'later.txt'\n"
  )
  files = [f"--gin_file={first}", f"--gin_file={later}"]
  assert "gone.txt" in call_main("--mode=decode", *files, "--input=gone.txt")
  assert "later.txt" in call_main("--mode=decode", *files)
  text = [f"--input={tiny.folder}/sentences.txt", f"--output={tmp_path}/out.jsonl"]
  assert "gamma: expected at least 1 drafted token a step, found 0" in call_main("--mode=decode", *files, *text)
  assert "found -2" in call_main("--mode=decode", *files, *text, "--gin.decode.decode.gamma=-2")
  assert not (tmp_path / "out.jsonl").exists()


def test_folders_of_the_user_do_not_hide_ours(tmp_path, monkeypatch):
  """gin takes `models/` in the working folder for a package: our own commands write there."""
  for name in ("models", "runs", "tasks", "trees"):
    (tmp_path / name).mkdir()
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  for _ in range(2):
    assert call_main("--mode=decode", "--gin_file=runs/demo.gin", "--dry_run") is None


def test_search_paths(tiny, tmp_path):
  (tmp_path / "mine.gin").write_text("from __gin__ import dynamic_registration\nM = 3\n")
  assert "Unable to open file: mine.gin" in call_main("--mode=decode", "--gin_file=mine.gin", "--dry_run")
  assert call_main("--mode=decode", "--gin_file=mine.gin", f"--gin_search_paths={tmp_path}", "--dry_run") is None


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_dry_run_prints_the_resolved_configuration(path, capsys, monkeypatch):
  if path.name == "t5x_infer.gin":
    pytest.importorskip("t5x", reason="its gin file is for t5x.infer; T5X is on no package registry")
  monkeypatch.setattr(main, "run_mode", lambda *_: pytest.fail("a dry run must not run"))
  text = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "gin").rglob("*.gin"))
  required = sorted(set(re.findall(r"^(\w+) = %gin.REQUIRED$", text, flags=re.MULTILINE)))
  bindings = [f"--gin_bindings={name} = 'given'" for name in required]  # Not --gin.: few of them are read by each file.
  assert call_main("--mode=decode", f"--gin_file={path}", *bindings, "--dry_run") is None
  printed = capsys.readouterr().out
  own = [line.split(" = ")[0].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("  ")]
  assert own and all(name in printed for name in own if name.isidentifier())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gin.decode.decode.no_such_argument=1"], "doesn't have a parameter named 'no_such_argument'"),
        (["--gin.decode.nothing.gamma=1"], "No configurable matching 'decode.nothing'"),
        (["--gin.decode.decode.gamma="], "Unable to parse value"),
        (["--gin_file=gone.gin"], "Unable to open file: gone.gin"),
        (["--gin_file={folder}/import.gin"], "no_such_module"),
        (["--gin_file={folder}/macro.gin"], "MISSING"),
    ],
)
def test_bad_configurations(tiny, arguments, message):
  header = "from __gin__ import dynamic_registration\n"
  tiny.write("import.gin", header + "from specdec import no_such_module\nno_such_module.f.x = 1\n")
  macro = "from specdec.modes import decode\ndecode.decode.gamma = %MISSING\nMISSING = %gin.REQUIRED\n"
  tiny.write("macro.gin", header + macro)
  arguments = [a.format(folder=tiny.folder) for a in arguments]
  found = call_main("--mode=decode", f"--gin_file={tiny.gin('decode')}", *arguments)
  assert found.startswith("specdec: ") and message in found


def test_errors_that_a_user_can_mend_are_one_message(tiny, monkeypatch):
  errors = {
      ValueError("gamma: bad\n  In call to configurable 'f' (<function f at 0x7f>) in scope 'x'"): "specdec: gamma: bad",
      FileNotFoundError(2, "No such file or directory", "x/out"): "specdec: [Errno 2] No such file or directory: 'x/out'",
      FloatingPointError("The loss is nan near step 3."): "specdec: The loss is nan near step 3.",
  }
  command = ["--mode=decode", f"--gin_file={tiny.gin('decode')}"]
  raised = []
  monkeypatch.setattr(main, "run_mode", lambda *_: (_ for _ in ()).throw(raised[-1]))
  for error, message in errors.items():
    raised.append(error)
    assert call_main(*command) == message
  with pytest.raises(FloatingPointError):  # With the whole trace for those who ask.
    call_main(*command, "-v=1")
  raised.append(RuntimeError("ours"))
  with pytest.raises(RuntimeError, match="ours"):
    call_main(*command)


def test_process_ends_with_one_line_and_a_code():
  def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "specdec.main", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )

  wrong = run("--mode=decode", "--gin_file=gin/runs/demo.gin", "--input=gone.txt", "--gin.decode.decode.nothing=1")
  assert wrong.returncode == 1 and wrong.stdout == ""
  assert wrong.stderr.startswith("specdec: ") and "Traceback" not in wrong.stderr
  flag = run("--mode=nothing")
  assert flag.returncode == 1 and "--mode=nothing: value should be one of <beam|benchmark|" in flag.stderr
  assert "Traceback" not in flag.stderr
