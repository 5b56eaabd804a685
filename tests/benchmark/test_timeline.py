"""`benchmark.timeline`: the bars are the calls of the decode, one after another, by their times."""

import re

import pytest

from specdec.benchmark import calls
from specdec.benchmark import timeline

COSTS = calls.Costs(
    target=10e-3, block=14e-3, draft=2e-3, target_encode=20e-3, draft_encode=5e-3, score_target=8e-3, score_block=12e-3
)


def lanes():
  return [timeline.lane(COSTS, 3, 4, 0.11), timeline.lane(COSTS, 0, 10, 0.13)]


def test_lanes():
  fast, plain = lanes()
  assert fast.end == pytest.approx(0.020 + 0.005 + 4 * (3 * 0.002 + 0.014))
  assert plain.end == pytest.approx(0.020 + 10 * 0.010)
  assert [bar.kind for bar in fast.bars[:6]] == ["encoder", "encoder", "draft", "draft", "draft", "target"]
  for one in (fast, plain):
    ends = [bar.start + bar.seconds for bar in one.bars]
    assert [bar.start for bar in one.bars[1:]] == pytest.approx(ends[:-1])


def test_terminal_is_to_scale():
  first, second, legend = timeline.to_terminal(lanes(), width=120).splitlines()
  bar = re.search(r"\|(.*)\|", second)[1]
  assert bar == "e" * 20 + "T" * 100 and "120.0 ms of calls, 130.0 ms measured" in second
  bar = re.search(r"\|(.*)\|", first)[1]
  assert bar == "e" * 25 + ("d" * 6 + "T" * 14) * 4 and first.startswith("   γ = 3 |")
  assert "d draft" in legend


def test_picture_has_a_bar_a_call():
  svg = timeline.to_svg(lanes())
  assert svg.count("<title>target: 14.000 ms") == 4 and svg.count("<title>draft") == 12
  widths = {kind: float(w) for w, kind in re.findall(r"width='([\d.]+)' height='20' fill='#\w+'><title>(\w+)", svg)}
  assert widths["target"] == pytest.approx(790 * 10 / 120 - 0.4, abs=0.02)
