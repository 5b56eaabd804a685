"""`benchmark.report`: records, tables and files that are whole or not there."""

import json

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
