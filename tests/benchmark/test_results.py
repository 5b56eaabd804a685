"""`benchmark.results`, `page`, `figures`: records as rows, marks, and pages that need nothing else."""

import html
import re

import pytest

from specdec.benchmark import grid as grid_lib
from specdec.benchmark import page
from specdec.benchmark import results
from tests.modes.tiny import call_main

MACHINE = dict(
    platform="cpu", device="cpu", devices=1, processor="Some CPU", cores=2, jax="0.10", python="3.11", commit="abc", date="2026-01-02"
)
TIMED = dict(
    batch_size=1, temperature=0.0, alpha=0.8, alpha_standard_error=0.01, tokens_per_call=2.9, ratio=1.5, low=1.4, high=1.6,
    accepted_by_position=[8, 4, 1], reached_by_position=[10, 8, 4], gin="f.x = 'a < b'", **MACHINE,
)  # fmt: skip
QUANTITIES = [
    {"name": "alpha", "measured": "alpha", "error": "alpha_standard_error", "published": "alpha"},
    {"name": "speed-up", "measured": "ratio", "low": "low", "high": "high", "predicted": "predicted", "published": "speed", "digits": 1},
]  # fmt: skip


def fill(folder, comparable=True):
  cells = [
      {"name": f"g{gamma}", "labels": {"draft": "tiny <1>"}, "published": [{"when": {"gamma": 3}, "alpha": 0.82, "speed": 3.4}]}
      for gamma in (3, 5, 7, 9)
  ]
  grid = grid_lib.check(
      dict(
          name="demo", title="A & B", source="a paper", command="run it", hardware="2 cores", minutes=3, comparable=comparable,
          mode="benchmark", quantities=QUANTITIES, cells=cells,
      )
  )  # fmt: skip
  written = grid_lib.Results(folder)
  written.write_grid(grid)
  common = dict(fingerprint="f", command="python -m …", started="now", seconds=60.0)
  for gamma, predicted, machine in ((3, 1.55, {}), (5, 1.9, {"device": "TPU v4"})):
    record = TIMED | {"gamma": gamma, "predicted": predicted} | machine
    written.finish(f"g{gamma}", common | {"cell": {}, "records": [record]}, "log")
  written.fail("g7", common | {"cell": {}, "code": 1, "error": "warming\nspecdec: <bad> weights"}, "log")


def test_rows(tmp_path):
  fill(tmp_path)
  sweep = results.read(str(tmp_path))
  assert list(sweep.failed) == ["g7"] and sweep.open == ["g9"] and list(sweep.cells) == ["g3", "g5"]
  first, second = sweep.rows
  assert first.labels == {"draft": "tiny <1>", "batch_size": 1, "temperature": 0.0, "gamma": 3}
  assert (first.hardware, second.hardware) == ("a", "b") and sweep.hardware["b"]["device"] == "TPU v4"
  alpha, speed = first.entries["alpha"], first.entries["speed-up"]
  assert (alpha.low, alpha.high) == (pytest.approx(0.7804), pytest.approx(0.8196))
  assert alpha.against_published == results.WITHIN, "0.82 may be a rounded 0.815"
  assert speed.against_predicted == results.WITHIN and speed.against_published == results.DEVIATES
  assert second.entries["speed-up"].against_predicted == results.DEVIATES
  assert second.entries["speed-up"].published is None, "published for gamma 3 only"


def test_published_values_of_other_models_carry_no_mark(tmp_path):
  fill(tmp_path, comparable=False)
  sweep = results.read(str(tmp_path))
  assert sweep.rows[0].entries["speed-up"].against_published == results.UNKNOWN
  text = page.to_markdown([sweep], [{}], "t")
  assert page.OTHERS in text and "| 3.4 |" in text


def test_markdown_table(tmp_path):
  fill(tmp_path)
  text = page.to_markdown([results.read(str(tmp_path))], [{"figures/x.svg": "A figure."}], "Title")
  lines = text.splitlines()
  head = next(line for line in lines if line.startswith("| draft"))
  assert head == (
      "| draft | batch_size | temperature | gamma | alpha, published | alpha, measured | speed-up, published | "
      "speed-up, predicted | speed-up, measured | on |"
  )
  assert "| tiny <1> | 1 | 0 | 3 | 0.82 = | 0.800 (0.780 to 0.820) | 3.4 ≠ (-1.9) | 1.55 = | 1.50 (1.40 to 1.60) | a |" in lines
  assert "| tiny <1> | 1 | 0 | 5 | – | 0.800 (0.780 to 0.820) | – | 1.90 ≠ (-0.40) | 1.50 (1.40 to 1.60) | b |" in lines
  assert "- state: `2 of 4 cells done; failed: g7; not run: g9. They took 2.0 minutes.`" in lines
  assert "- b: cpu: 1 x TPU v4; Some CPU, 2 cores; jax 0.10, Python 3.11, commit abc, 2026-01-02" in lines
  assert "- g7: `specdec: <bad> weights`" in lines and "![A figure.](figures/x.svg)" in lines


def test_report_mode_writes_one_page_that_needs_nothing_else(tmp_path):
  fill(tmp_path / "in")
  assert call_main("--mode=report", f"--input={tmp_path}/in", f"--output={tmp_path}/out") is None
  text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
  assert not re.findall(r"(?:src|href)=['\"](?!data:)", text), "nothing is loaded from elsewhere"
  assert text.count("data:image/svg+xml;base64,") == len(list((tmp_path / "out" / "figures").iterdir())) == 5
  plain = html.unescape(re.sub(r"<[^>]*>", " ", text))
  for part in ("A & B", "tiny <1>", "1.50 (1.40 to 1.60)", "f.x = 'a < b'", "specdec: <bad> weights", "TPU v4"):
    assert part in plain
  assert "<1>" not in text and "<bad>" not in text
  markdown = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
  for path in re.findall(r"!\[.*?\]\((.*?)\)", markdown):
    assert (tmp_path / "out" / path).read_text(encoding="utf-8").startswith("<svg")
  assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["README.md", "figures", "index.html", "overview.md"]


def test_overview_says_what_was_not_run(tmp_path):
  fill(tmp_path)
  other = results.read(str(tmp_path)).grid | {"name": "big", "title": "The big one", "hardware": "a TPU", "command": "go"}
  text = page.overview([results.read(str(tmp_path))], [other, other | {"name": "demo"}], "What")
  assert "| demo | A & B | 2 of 4 cells done; failed: g7; not run: g9. | cpu: cpu, 2 cores; cpu: TPU v4, 2 cores | `run it` |" in text
  assert "| big | The big one | a TPU | 3 | `go` |" in text and text.count("| demo |") == 1


def test_folders_without_a_sweep(tmp_path):
  message = call_main("--mode=report", f"--input={tmp_path}", f"--output={tmp_path}/out")
  assert "expected a folder that --mode=sweep wrote, found no grid.json" in message
  assert "expected at least one folder" in call_main("--mode=report", "--input=,", f"--output={tmp_path}/out")


def test_intervals():
  assert results.compare(1.0, 0.9, 1.1, 1.2, 0.0) == results.DEVIATES
  assert results.compare(1.0, 0.9, 1.1, 1.14, 0.05) == results.WITHIN
  assert results.compare(1.0, None, None, 1.0, 0.0) == results.UNKNOWN
  assert results.published_for([{"a": 1}, {"when": {"g": 1}, "a": 2}, {"when": {"g": 2}, "b": 3}], {"g": 1}) == {"a": 2}
