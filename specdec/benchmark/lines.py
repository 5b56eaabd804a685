"""Small line plots as SVG, without a plotting package."""

from collections.abc import Mapping, Sequence
import html
import math

_COLOURS = ("#57606a", "#bf8700", "#0969da", "#cf222e", "#1a7f37", "#8250df")
_WIDTH, _HEIGHT, _LEFT, _TOP = 300, 220, 48, 34


def _ticks(low: float, high: float) -> list[float]:
  """About five round numbers from `low` to `high`."""
  step = 10 ** math.floor(math.log10((high - low) / 4))
  step = next(step * m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 5)
  first = math.ceil(low / step - 1e-9)
  return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def panels(
    plots: Sequence[tuple[str, Mapping[str, Sequence[tuple[float, float, float]]]]],
    x_label: str,
    y_label: str,
    log_x: bool = False,
    diagonal: bool = False,
) -> str:
  """Panels side by side on one scale, a line a series, with error bars.

  Args:
    plots: for each panel its title and its series: name to points (x, y, error).
    x_label: below each panel.
    y_label: beside the first.
    log_x: logarithmic x, marked at the points.
    diagonal: draws y = x.

  Returns:
    An SVG document.

  Raises:
    ValueError: there is no point.
  """
  points = [p for _, series in plots for line in series.values() for p in line]
  if not points:
    raise ValueError("plot: expected at least one point, found none.")
  names = list(dict.fromkeys(name for _, series in plots for name in series))
  place = (lambda x: math.log2(x)) if log_x else (lambda x: x)
  left, right = min(place(p[0]) for p in points), max(place(p[0]) for p in points)
  low, high = min(0.0, min(p[1] - p[2] for p in points)), max(p[1] + p[2] for p in points) * 1.05
  right, high = (right if right > left else left + 1), (high if high > low else low + 1)
  marks = sorted({p[0] for p in points}) if log_x else _ticks(left, right)
  parts = []
  text = lambda x, y, s, more="": f"<text x='{x:.1f}' y='{y:.1f}' {more}>{html.escape(str(s))}</text>"
  for number, (title, series) in enumerate(plots):
    origin = _LEFT + number * (_WIDTH + 30)
    at_x = lambda x: origin + (place(x) - left) / (right - left) * _WIDTH
    at_y = lambda y: _TOP + (high - y) / (high - low) * _HEIGHT
    parts.append(text(origin + _WIDTH / 2, _TOP - 12, title, "text-anchor='middle' font-weight='bold'"))
    parts.append(f"<rect x='{origin}' y='{_TOP}' width='{_WIDTH}' height='{_HEIGHT}' fill='none' stroke='#d0d7de'/>")
    for mark in marks:
      parts.append(text(at_x(mark), _TOP + _HEIGHT + 16, f"{mark:g}", "text-anchor='middle'"))
    for mark in _ticks(low, high):
      parts.append(f"<path d='M{origin} {at_y(mark):.1f}h{_WIDTH}' stroke='#eaeef2'/>")
      if number == 0:
        parts.append(text(origin - 6, at_y(mark) + 4, f"{mark:g}", "text-anchor='end'"))
    parts.append(text(origin + _WIDTH / 2, _TOP + _HEIGHT + 34, x_label, "text-anchor='middle'"))
    if diagonal:
      end = min(high, right)
      parts.append(
          f"<path d='M{at_x(left):.1f} {at_y(left):.1f}L{at_x(end):.1f} {at_y(end):.1f}' stroke='#8c959f' "
          "stroke-dasharray='4 3'/>"
      )
    for name, line in series.items():
      colour = _COLOURS[names.index(name) % len(_COLOURS)]
      path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y, _ in line)
      parts.append(f"<path d='M{path}' fill='none' stroke='{colour}' stroke-width='1.8'/>")
      for x, y, error in line:
        parts.append(f"<path d='M{at_x(x):.1f} {at_y(y - error):.1f}L{at_x(x):.1f} {at_y(y + error):.1f}' stroke='{colour}'/>")
        parts.append(f"<circle cx='{at_x(x):.1f}' cy='{at_y(y):.1f}' r='2.5' fill='{colour}'/>")
  below = _TOP + _HEIGHT + 56
  for number, name in enumerate(names):
    x = _LEFT + 150 * number
    parts.append(f"<path d='M{x} {below - 4}h18' stroke='{_COLOURS[number % len(_COLOURS)]}' stroke-width='3'/>")
    parts.append(text(x + 24, below, name))
  middle = _TOP + _HEIGHT / 2
  parts.append(text(12, middle, y_label, f"text-anchor='middle' transform='rotate(-90 12 {middle})'"))
  width = max(_LEFT + len(plots) * (_WIDTH + 30), _LEFT + 150 * len(names))
  return (
      f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{below + 14}' font-family='sans-serif' "
      "font-size='12'><rect width='100%' height='100%' fill='white'/>" + "".join(parts) + "</svg>\n"
  )
