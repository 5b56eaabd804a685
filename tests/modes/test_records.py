"""The output file of a decode: what it never harms, and who may write it."""

import json
import os
import stat

import pytest

from specdec.modes import decode
from tests.modes import tiny as lib


def written(path, *lines, settings=None):
  records = decode.Records(str(path), settings or {})
  for line in lines:
    records.write({"line": line})
  records.finish()


def test_a_pipe_or_device_is_written_to_and_not_replaced(tmp_path):
  """As root, replacing it would leave a plain file at /dev/null."""
  pipe = tmp_path / "pipe"
  os.mkfifo(pipe)
  reader = os.open(pipe, os.O_RDWR)
  written(pipe, 1)
  assert stat.S_ISFIFO(pipe.stat().st_mode) and os.read(reader, 99) == b'{"line": 1}\n'
  os.close(reader)
  assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
  file, link = tmp_path / "file", tmp_path / "link"
  file.write_text("older")
  link.symlink_to(file)
  written(link, 1)
  assert link.is_symlink() and file.read_text() == '{"line": 1}\n'
  assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_two_runs_at_once_do_not_mix_their_lines(tmp_path):
  path = tmp_path / "out.jsonl"
  first = decode.Records(str(path), {})
  first.write({"line": 1})
  with pytest.raises(ValueError, match="output: another run is writing .*out.jsonl.partial; wait for it"):
    decode.Records(str(path), {})
  first.write({"line": 2})
  first.finish()
  assert [json.loads(line)["line"] for line in path.read_text().splitlines()] == [1, 2]
  assert os.listdir(tmp_path) == ["out.jsonl"]


def test_a_run_that_ended_before_its_first_line_binds_nobody(tmp_path):
  """Bad input is found, the program ends, the input is mended: the next run is free."""
  path = tmp_path / "out.jsonl"
  decode.Records(str(path), {"inputs": "bad"}).close()
  written(path, 1, settings={"inputs": "mended"})
  assert path.read_text() == '{"line": 1}\n' and os.listdir(tmp_path) == ["out.jsonl"]


def test_a_prefix_that_is_too_long_is_refused_before_anything_is_written(tiny, tmp_path):
  source = tiny.write("prefix.jsonl", '{"inputs": "Hund"}\n' + json.dumps({"inputs": "Hund", "prefix_ids": [5] * 513}))
  with pytest.raises(ValueError, match="input: line 2 of .*prefix.jsonl: expected a prefix of at most 512 tokens, found 513"):
    decode.decode(tiny.target, tiny.draft, input=source, output=str(tmp_path / "out.jsonl"), input_lengths=lib.LENGTHS)
  assert os.listdir(tmp_path) == []


def test_closed_standard_output(monkeypatch):
  """Found before anything is decoded."""
  monkeypatch.setattr("sys.stdout", None)
  with pytest.raises(ValueError, match="output: expected standard output, found it closed; name a file"):
    decode.Records("-", {})
