"""The timeline of a decode, as Figure 5 of Leviathan et al. 2023: encoders, draft calls and target calls by measured times."""

from collections.abc import Sequence
import html
from typing import NamedTuple

from specdec.benchmark.calls import Costs

ENCODER, DRAFT, TARGET = "encoder", "draft", "target"
_COLOURS = {ENCODER: "#8250df", DRAFT: "#bf8700", TARGET: "#0969da"}
_LETTERS = {ENCODER: "e", DRAFT: "d", TARGET: "T"}


class Bar(NamedTuple):
  """One call: what ran, from when, for how long (seconds)."""

  kind: str
  start: float
  seconds: float


class Lane(NamedTuple):
  """One decode: its name, its calls in order, and the measured time of the whole (seconds)."""

  name: str
  bars: list[Bar]
  measured: float

  @property
  def end(self) -> float:
    """When the last call ends."""
    return self.bars[-1].start + self.bars[-1].seconds


def lane(costs: Costs, gamma: int, steps: int, measured: float) -> Lane:
  """The calls of a decode of `steps` steps, each by its measured time.

  Args:
    costs: measured at this gamma.
    gamma: tokens drafted a step; 0 is plain decoding.
    steps: calls of the target.
    measured: seconds that the decode took as one program.

  Example:
    >>> costs = Costs(3., 4., 1., 2., 1., 3., 4.)
    >>> [(bar.kind, bar.start) for bar in lane(costs, 1, 2, 13.).bars]
    [('encoder', 0.0), ('encoder', 2.0), ('draft', 3.0), ('target', 4.0), ('draft', 8.0), ('target', 9.0)]
  """
  encoders = [(ENCODER, costs.target_encode)] + ([(ENCODER, costs.draft_encode)] if gamma else [])
  step = [(DRAFT, costs.draft)] * gamma + [(TARGET, costs.block if gamma else costs.target)]
  bars, now = [], 0.0
  for kind, seconds in encoders + step * steps:
    bars.append(Bar(kind, now, seconds))
    now += seconds
  return Lane(f"γ = {gamma}" if gamma else "no draft", bars, measured)


def to_terminal(lanes: Sequence[Lane], width: int = 96) -> str:
  """A line a decode: e encoder, d draft, T target; all to one scale."""
  scale = max(lane.end for lane in lanes) / width
  label = max(len(lane.name) for lane in lanes)
  lines = []
  for one in lanes:
    text = ""
    for bar in one.bars:
      text += _LETTERS[bar.kind] * (round((bar.start + bar.seconds) / scale) - len(text))
    lines.append(f"{one.name:>{label}} |{text}| {1e3 * one.end:.1f} ms of calls, {1e3 * one.measured:.1f} ms measured")
  legend = "e encoder, d draft, T target; widths are measured times of the calls"
  return "\n".join([*lines, f"{'':>{label}}  {legend}"])


def to_svg(lanes: Sequence[Lane], width: int = 900) -> str:
  """The same as a picture, with an axis in milliseconds."""
  left, height, end = 90, 34, max(lane.end for lane in lanes)
  x = lambda seconds: left + (width - left - 20) * seconds / end
  parts = [
      f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height * (len(lanes) + 2)}' "
      "font-family='sans-serif' font-size='12'><rect width='100%' height='100%' fill='white'/>"
  ]
  for row, one in enumerate(lanes):
    y = height * row + 10
    parts.append(f"<text x='{left - 8}' y='{y + 15}' text-anchor='end'>{html.escape(one.name)}</text>")
    for bar in one.bars:
      parts.append(
          f"<rect x='{x(bar.start):.2f}' y='{y}' width='{max(0.3, x(bar.seconds) - left - 0.4):.2f}' height='20' "
          f"fill='{_COLOURS[bar.kind]}'><title>{bar.kind}: {1e3 * bar.seconds:.3f} ms</title></rect>"
      )
  bottom = height * len(lanes) + 12
  parts.append(f"<line x1='{left}' y1='{bottom}' x2='{width - 20}' y2='{bottom}' stroke='#57606a'/>")
  for i in range(6):
    parts.append(f"<text x='{x(end * i / 5):.1f}' y='{bottom + 14}' text-anchor='middle'>{1e3 * end * i / 5:.1f} ms</text>")
  for i, (kind, colour) in enumerate(_COLOURS.items()):
    parts.append(f"<rect x='{left + 110 * i}' y='{bottom + 26}' width='12' height='12' fill='{colour}'/>")
    parts.append(f"<text x='{left + 110 * i + 18}' y='{bottom + 37}'>{kind}</text>")
  return "".join(parts) + "</svg>\n"
