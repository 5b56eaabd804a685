"""`benchmark.report`: records, tables and files that are whole or not there."""

import json
import os
import stat

import pytest

from specdec.benchmark import report


def test_records_are_added(tmp_path, capsys):
  path = tmp_path / "new" / "records.jsonl"
  for i in range(3):
    report.append_record(str(path), {"i": i, "path": tmp_path})
  assert [json.loads(line)["i"] for line in path.read_text().splitlines()] == [0, 1, 2]
  report.append_record("-", {"i": 7})
  assert capsys.readouterr().out == '{"i": 7}\n'


def test_environment_says_what_a_figure_depends_on():
  found = report.environment()
  assert set(found) == {
      "jax", "jaxlib", "numpy", "python", "device", "devices", "platform", "processor", "machine", "cores", "commit", "date"
  }  # fmt: skip
  assert json.loads(json.dumps(found)) == found


def test_table():
  rows = [{"a": 1, "b": 2.0, "c": "x"}, {"a": 10, "b": float("nan"), "c": None}]
  assert report.table(rows, ["c", "b"]) == "| c | b |\n|---|---|\n| x | 2.000 |\n| None | nan |"


def test_write_text(tmp_path, capsys):
  path = tmp_path / "new" / "page.html"
  report.write_text(str(path), "one")
  report.write_text(str(path), "two")
  assert path.read_text() == "two" and [p.name for p in path.parent.iterdir()] == ["page.html"]
  report.write_text("-", "text")
  assert capsys.readouterr().out == "text"
  with pytest.raises(UnicodeEncodeError):
    report.write_text(str(path), "half \ud800")
  assert path.read_text() == "two"
  with pytest.raises(OSError):
    report.write_text(str(path / "below a file"), "text")


def test_a_pipe_or_device_is_written_to_and_not_replaced(tmp_path):
  """As root, replacing it would leave a plain file at /dev/null."""
  pipe = tmp_path / "pipe"
  os.mkfifo(pipe)
  reader = os.open(pipe, os.O_RDWR)
  report.write_text(str(pipe), "text")
  assert stat.S_ISFIFO(pipe.stat().st_mode) and os.read(reader, 99) == b"text"
  os.close(reader)
  assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
  file, link = tmp_path / "file", tmp_path / "link"
  file.write_text("older")
  link.symlink_to(file)
  report.write_text(str(link), "text")
  assert link.is_symlink() and file.read_text() == "text"
