"""A decode that was killed goes on after its last whole line, and ends as one that was not."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from specdec.modes import decode
from tests.modes import killed
from tests.modes import tiny as lib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(tiny, output, **arguments):
  arguments = killed.SETTINGS | dict(input=str(tiny.folder / "sentences.txt"), output=str(output)) | arguments
  return decode.decode(tiny.target, tiny.draft, **arguments)


def without_seconds(text):
  return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text.splitlines()]


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
  """The text of the uninterrupted output."""
  path = tmp_path_factory.mktemp("whole") / "out.jsonl"
  run(tiny, path)
  return path.read_text(encoding="utf-8")


@pytest.fixture
def decoded_lines(monkeypatch):
  """The line numbers of every call of a decoder."""
  lines, call = [], decode.Decoder.__call__

  def counted(decoder, group):
    lines.append([request.line for request in group])
    return call(decoder, group)

  monkeypatch.setattr(decode.Decoder, "__call__", counted)
  return lines


def interrupted(folder, whole, lines, rest='{"inputs": "half a li'):
  """The files that a kill leaves after `lines` whole lines."""
  settings = next(folder.glob("*.settings"), None)
  assert settings is not None
  (folder / "out.jsonl.partial").write_text("".join(whole.splitlines(True)[:lines]) + rest, encoding="utf-8")


@pytest.fixture
def begun(tiny, whole, tmp_path, monkeypatch):
  """A folder as a kill after six lines leaves it, made without a process of its own."""

  def stop(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(decode.Decoder, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
      run(tiny, tmp_path / "out.jsonl")
  interrupted(tmp_path, whole, 6)
  return tmp_path / "out.jsonl"


def test_killed_process(tiny, whole, tmp_path, decoded_lines):
  output = tmp_path / "out.jsonl"
  process = subprocess.run(
      [sys.executable, "-m", "tests.modes.killed", str(tiny.folder), str(output), "6"],
      cwd=ROOT, capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert process.returncode == -signal.SIGKILL, process.stderr
  assert sorted(os.listdir(tmp_path)) == ["out.jsonl.partial", "out.jsonl.partial.settings"]
  kept = (tmp_path / "out.jsonl.partial").read_text(encoding="utf-8")
  assert kept.count("\n") == 6 and kept.endswith('{"inputs": "half a li')
  records = run(tiny, output)
  assert decoded_lines == [[7, 8, 9, 10]], "no finished line is decoded again"
  text = output.read_text(encoding="utf-8")
  assert text.startswith(kept[: kept.rindex("\n") + 1])
  assert without_seconds(text) == without_seconds(whole)
  assert [json.loads(line) for line in text.splitlines()] == records
  assert os.listdir(tmp_path) == ["out.jsonl"]


@pytest.mark.parametrize(("lines", "rest"), [(0, ""), (3, ""), (9, '{"a": 1}'), (10, "")])
def test_from_any_line(tiny, whole, begun, decoded_lines, lines, rest):
  interrupted(begun.parent, whole, lines, rest)
  run(tiny, begun)
  assert sorted(sum(decoded_lines, [])) == list(range(lines + 1, 11))
  assert without_seconds(begun.read_text(encoding="utf-8")) == without_seconds(whole)


def test_a_finished_output_is_done_again(tiny, whole, tmp_path, decoded_lines):
  output = tmp_path / "out.jsonl"
  output.write_text("older\n")
  run(tiny, output)
  assert sum(map(len, decoded_lines)) == 10
  assert without_seconds(output.read_text(encoding="utf-8")) == without_seconds(whole)


@pytest.mark.parametrize("name", ["seed", "temperature", "gamma", "max_new_tokens", "batch_size", "top_k"])
def test_changed_settings_are_refused(tiny, begun, name):
  before = begun.with_name("out.jsonl.partial").read_bytes()
  with pytest.raises(ValueError, match="out.jsonl.partial was begun with other settings or inputs; .* or remove it"):
    run(tiny, begun, **{name: 2})
  assert begun.with_name("out.jsonl.partial").read_bytes() == before
  assert not begun.exists()


def test_changed_input_weights_or_lost_settings_are_refused(tiny, begun):
  refused = pytest.raises(ValueError, match="was begun with other settings or inputs")
  with refused:
    run(tiny, begun, input=tiny.write("other.txt", "\n".join(reversed(lib.SENTENCES))))
  with refused:
    run(tiny._replace(target=tiny.draft), begun)
  begun.with_name("out.jsonl.partial.settings").unlink()
  with refused:
    run(tiny, begun)
  assert not begun.exists()


def test_message_through_main(tiny, begun):
  message = lib.call_main(
      "--mode=decode", f"--gin_file={tiny.gin('decode')}", "--gin.decode.decode.batch_size=4", f"--output={begun}"
  )
  assert message.startswith("specdec: output: ") and "begun with other settings" in message and "\n" not in message
