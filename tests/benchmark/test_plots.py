"""`benchmark.plots`: the curves are the paper's formulas, worked out here once more, and the points are where they belong."""

import numpy as np
import pytest

from specdec.benchmark import plots

POINTS = [(0.5, 1.8, "one"), (0.7, 2.5, "one"), (0.6, 2.0, "other")]


def curves(figure):
  return [line.get_xydata() for line in figure.axes[0].lines]


def markers(figure):
  lines = [line for line in figure.axes[0].lines if line.get_linestyle() == "None"]
  return sorted((x, y, line.get_label()) for line in lines for x, y in line.get_xydata().tolist())


def test_figure_2():
  figure = plots.tokens_per_call(POINTS, gammas=(3,))
  for alpha, tokens in curves(figure)[0]:
    assert tokens == pytest.approx(sum(alpha**k for k in range(4)))
  assert markers(figure) == sorted(POINTS)


def test_figure_3():
  figure = plots.best_gamma([(0.8, 7, "ours")], costs=(0.05,), limit=60)
  for alpha, best in curves(figure)[0][::9]:
    factor = [sum(alpha**k for k in range(g + 1)) / (0.05 * g + 1) for g in range(61)]
    assert best == int(np.argmax(factor))
  assert markers(figure) == [(0.8, 7, "ours")]


def test_figure_4():
  figure = plots.factors(POINTS, gammas=(5,), c=0.1)
  time, operations = curves(figure)[:2]
  for (alpha, faster), (_, more) in zip(time, operations):
    tokens = sum(alpha**k for k in range(6))
    assert faster == pytest.approx(tokens / 1.5) and more == pytest.approx((5 * 0.1 + 6) / tokens)
  assert markers(figure) == sorted(POINTS)


def test_speed_by_gamma_draws_measurement_interval_and_prediction():
  points = [
      dict(gamma=5, ratio=2.0, low=1.5, high=2.2, predicted=1.9), dict(gamma=3, ratio=1.5, low=1.4, high=1.9, predicted=1.6)
  ]  # fmt: skip
  figure = plots.speed_by_gamma({"ours": points})
  assert [xy.tolist() for xy in curves(figure)][-2] == [[3.0, 1.6], [5.0, 1.9]]
  bars = [segment.tolist() for segment in figure.axes[0].collections[0].get_segments()]
  assert bars == [[[3.0, 1.4], [3.0, 1.9]], [[5.0, 1.5], [5.0, 2.2]]]


def test_by_position_and_lenience():
  figure = plots.acceptance_by_position({"a": [0.8, 0.5], "b": [0.9, 0.7, 0.6]})
  assert [xy.tolist() for xy in curves(figure)] == [[[1, 0.8], [2, 0.5]], [[1, 0.9], [2, 0.7], [3, 0.6]]]
  points = [dict(lenience=1.0, alpha=0.6, error=0.01, published=0.62), dict(lenience=0.5, alpha=0.7, error=0.01, published=None)]
  figure = plots.acceptance_by_lenience({"a": points})
  assert [[1.0, 0.62]] in [xy.tolist() for xy in curves(figure)]


def test_svg_is_the_same_each_time_and_text_stays_text():
  svg = plots.to_svg(plots.tokens_per_call(POINTS), "name")
  assert svg == plots.to_svg(plots.tokens_per_call(POINTS), "name")
  assert svg.startswith("<svg") and ">tokens per target call<" in svg
