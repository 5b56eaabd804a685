"""The paper's figures with measured points on their curves, as SVG. The one file that imports matplotlib.

A point is `(x, y, name of its series)`.
"""

from collections.abc import Mapping, Sequence
import io
from typing import Any

import matplotlib
from matplotlib.figure import Figure
import numpy as np

from specdec.theory import speedup
from specdec.theory import tokens as theory_tokens

Point = tuple[float, float, str]

_ALPHAS = np.linspace(0.0, 0.995, 200)
_MARKERS = "osD^vP*X<>"
_COLOURS = ("#0969da", "#1a7f37", "#cf222e", "#8250df", "#bf8700", "#57606a", "#1b7c83", "#953800")


def to_svg(figure: Figure, name: str) -> str:
  """The figure as SVG text, the same bytes for the same figure."""
  with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
    data = io.StringIO()
    figure.savefig(data, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
  text = data.getvalue()
  return text[text.index("<svg") :]


def _axes(x: str, y: str, title: str = "") -> tuple[Figure, Any]:
  figure = Figure(figsize=(5.2, 3.6))
  axes = figure.add_subplot()
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  axes.set_title(title, fontsize=10)
  axes.grid(alpha=0.25)
  return figure, axes


def _scatter(axes: Any, points: Sequence[Point]) -> None:
  for i, series in enumerate(sorted({name for _, _, name in points})):
    mine = [(x, y) for x, y, name in points if name == series]
    marker = _MARKERS[i % len(_MARKERS)]
    axes.plot(*zip(*mine), marker, color=_COLOURS[i % len(_COLOURS)], markersize=5, markeredgecolor="black", label=series)


def _legend(axes: Any) -> None:
  if axes.get_legend_handles_labels()[1]:
    axes.legend(fontsize=7)


def tokens_per_call(points: Sequence[Point] = (), gammas: Sequence[int] = (1, 3, 5, 7, 10)) -> Figure:
  """Figure 2: Eq. 1 against alpha for several gamma; the points are measured tokens per target call."""
  figure, axes = _axes("α", "tokens per target call", "Eq. 1; points are measured")
  for gamma in gammas:
    axes.plot(_ALPHAS, theory_tokens.expected_tokens(_ALPHAS, gamma), color="grey", linewidth=1)
    axes.annotate(f"γ = {gamma}", (1.0, gamma + 0.95), fontsize=7, ha="right")
  _scatter(axes, points)
  axes.set_xlim(0, 1)
  _legend(axes)
  return figure


def best_gamma(points: Sequence[Point] = (), costs: Sequence[float] = (0.01, 0.02, 0.05, 0.1), limit: int = 40) -> Figure:
  """Figure 3: the best gamma against alpha for several c, v = 1; the points are the best of the measured gammas."""
  figure, axes = _axes("α", "best γ", "Theorem 3.8; points are the best of the measured γ")
  alphas = np.linspace(0.02, 0.95, 94)
  for c in costs:
    best = [int(np.argmax(speedup.walltime_factor(a, np.arange(limit + 1), c))) for a in alphas]
    axes.step(alphas, best, where="mid", linewidth=1, label=f"c = {c:g}")
  _scatter(axes, points)
  axes.set_xlim(0, 1)
  axes.set_ylim(0, limit)
  _legend(axes)
  return figure


def factors(points: Sequence[Point] = (), gammas: Sequence[int] = (1, 3, 5, 7, 10), c: float = 0.0) -> Figure:
  """Figure 4: the factors of time (solid) and of operations (dashed) against alpha; the points are measured speed-ups."""
  figure, axes = _axes("α", "factor", f"Theorems 3.8 (solid) and 3.11 (dashed), c = ĉ = {c:g}, v = 1; points are measured")
  for i, gamma in enumerate(gammas):
    colour = _COLOURS[i % len(_COLOURS)]
    axes.plot(_ALPHAS, speedup.walltime_factor(_ALPHAS, gamma, c), color=colour, linewidth=1, label=f"γ = {gamma}")
    axes.plot(_ALPHAS, speedup.operations_factor(_ALPHAS, gamma, c), "--", color=colour, linewidth=1)
  _scatter(axes, points)
  axes.set_xlim(0, 1)
  axes.set_ylim(0, 8)
  _legend(axes)
  return figure


def speed_by_gamma(series: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
  """Speed-up against gamma: measured with its interval (points), and what the theory predicts (lines).

  Args:
    series: name to its measurements, dicts of `gamma`, `ratio`, `low`, `high`
      and `predicted`.
  """
  figure, axes = _axes("γ", "speed-up", "measured with 95 % interval; dashed: predicted from measured α, c and v")
  for i, (name, points) in enumerate(series.items()):
    colour = _COLOURS[i % len(_COLOURS)]
    points = sorted(points, key=lambda p: p["gamma"])
    x, y = [p["gamma"] for p in points], np.array([p["ratio"] for p in points])
    ends = np.abs(np.array([[p["low"], p["high"]] for p in points]).T - y)
    axes.errorbar(x, y, ends, fmt=_MARKERS[i % len(_MARKERS)], color=colour, capsize=3, markersize=5, label=name)
    axes.plot(x, [p["predicted"] for p in points], "--", color=colour, linewidth=1)
  axes.axhline(1.0, color="grey", linewidth=0.8)
  _legend(axes)
  return figure


def acceptance_by_position(series: Mapping[str, Sequence[float]]) -> Figure:
  """The share of drafts accepted at each place of the chain, of those that were reached."""
  figure, axes = _axes("place in the draft", "accepted of those reached", "the theory takes one α for all places")
  for i, (name, shares) in enumerate(series.items()):
    style = _MARKERS[i % len(_MARKERS)] + "-"
    axes.plot(range(1, len(shares) + 1), shares, style, color=_COLOURS[i % len(_COLOURS)], markersize=4, label=name)
  axes.set_ylim(0, 1)
  axes.set_xticks(range(1, 1 + max((len(s) for s in series.values()), default=1)))
  _legend(axes)
  return figure


def acceptance_by_lenience(series: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
  """alpha against lenience: measured with its error (points), published (crosses joined by a dotted line).

  Args:
    series: name to dicts of `lenience`, `alpha`, `error` and optionally `published`.
  """
  figure, axes = _axes("lenience l", "α(l)", "measured ± 1.96 standard errors; dotted: published")
  for i, (name, points) in enumerate(series.items()):
    colour = _COLOURS[i % len(_COLOURS)]
    points = sorted(points, key=lambda p: p["lenience"])
    x = [p["lenience"] for p in points]
    axes.errorbar(
        x, [p["alpha"] for p in points], [1.96 * p["error"] for p in points], fmt=_MARKERS[i % len(_MARKERS)] + "-",
        color=colour, capsize=3, markersize=5, linewidth=1, label=name,
    )  # fmt: skip
    printed = [(p["lenience"], p["published"]) for p in points if p.get("published") is not None]
    if printed:
      axes.plot(*zip(*printed), "x:", color=colour, linewidth=1)
  axes.set_ylim(0, 1)
  _legend(axes)
  return figure
