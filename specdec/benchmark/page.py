"""Sweeps as one self-contained HTML page, and as Markdown with its figures beside it."""

import base64
from collections.abc import Mapping, Sequence
import html
from typing import Any

from specdec.benchmark.results import DEVIATES, Entry, Sweep, WITHIN

_STYLE = (
    "body{font-family:sans-serif;margin:2em auto;max-width:75em;line-height:1.4}"
    "table{border-collapse:collapse;font-size:.9em}td,th{border:1px solid #d0d7de;padding:.2em .5em;text-align:right}"
    "td.label{text-align:left}th{background:#f6f8fa}.within{color:#1a7f37}.deviates{color:#cf222e;font-weight:bold}"
    ".other{color:#57606a}pre{background:#f6f8fa;padding:.8em;overflow:auto;font-size:.8em}"
    "figure{display:inline-block;margin:.5em}figcaption{font-size:.85em;color:#57606a}img{max-width:36em}"
)
_MARKS = {WITHIN: "=", DEVIATES: "≠"}
LEGEND = (
    "Measured values carry their 95 % interval where one is known. = means that the predicted or published value lies "
    "within that interval (a published one within half its last digit of it), ≠ that it does not; no mark means that "
    "there is nothing to compare."
)
OTHERS = "The published values are of other models and other hardware; they stand here for orientation and carry no mark."


def measured_text(entry: Entry) -> str:
  """A measured value with its interval.

  Example:
    >>> measured_text(Entry(0.725, 0.7, 0.75, None, None, "unknown", "unknown", 2))
    '0.725 (0.700 to 0.750)'
  """
  if entry.measured is None:
    return "–"
  value = f"{entry.measured:.{entry.digits + 1}f}"
  if entry.low is None or entry.high is None:
    return value
  return f"{value} ({entry.low:.{entry.digits + 1}f} to {entry.high:.{entry.digits + 1}f})"


def reference_text(value: float | None, verdict: str, entry: Entry, digits: int) -> str:
  """A predicted or published value with its mark, and by how much the measurement deviates."""
  if value is None:
    return "–"
  text = f"{value:.{digits}f}"
  if verdict == DEVIATES and entry.measured is not None:
    text += f" {_MARKS[verdict]} ({entry.measured - value:+.{digits}f})"
  elif verdict in _MARKS:
    text += f" {_MARKS[verdict]}"
  return text


def columns(sweep: Sweep) -> tuple[list[str], list[tuple[str, str]]]:
  """The label columns, and `(quantity, 'measured', 'predicted' or 'published')` of the others that hold anything."""
  labels = list(dict.fromkeys(name for row in sweep.rows for name in row.labels))
  values = []
  for quantity in sweep.grid["quantities"]:
    for kind in ("published", "predicted", "measured"):
      if kind == "measured" or any(getattr(row.entries[quantity["name"]], kind) is not None for row in sweep.rows):
        values.append((quantity["name"], kind))
  return labels, values


def table(sweep: Sweep) -> tuple[list[str], list[list[tuple[str, str]]]]:
  """The heads of the columns, and for each row the text of its cells and their class."""
  labels, values = columns(sweep)
  rows = []
  for row in sweep.rows:
    cells = [(_show(row.labels.get(name, "–")), "label") for name in labels]
    for name, kind in values:
      entry = row.entries[name]
      if kind == "measured":
        cells.append((measured_text(entry), ""))
      elif kind == "predicted":
        cells.append((reference_text(entry.predicted, entry.against_predicted, entry, entry.digits + 1), entry.against_predicted))
      else:
        verdict = entry.against_published if sweep.grid["comparable"] else "other"
        cells.append((reference_text(entry.published, verdict, entry, entry.digits), verdict))
    rows.append([*cells, (row.hardware, "")])
  return [*labels, *(f"{name}, {kind}" for name, kind in values), "on"], rows


def _show(value: Any) -> str:
  return f"{value:g}" if isinstance(value, float) else str(value)


def hardware_text(machine: Mapping[str, Any]) -> str:
  """One line on the machine that numbers came from."""
  return (
      f"{machine['platform']}: {machine['devices']} x {machine['device']}; {machine['processor']}, {machine['cores']} cores; "
      f"jax {machine['jax']}, Python {machine['python']}, commit {machine['commit']}, {machine['date']}"
  )


def status(sweep: Sweep) -> str:
  """How far the sweep got."""
  parts = [f"{len(sweep.cells)} of {len(sweep.grid['cells'])} cells done"]
  parts += [f"failed: {', '.join(sweep.failed)}"] if sweep.failed else []
  parts += [f"not run: {', '.join(sweep.open)}"] if sweep.open else []
  return "; ".join(parts) + "."


def facts(sweep: Sweep) -> list[tuple[str, str]]:
  """What a reader must know of a sweep before its numbers."""
  grid = sweep.grid
  took = sum(cell["seconds"] for cell in sweep.cells.values()) / 60
  return [
      ("repeats", grid["source"]),
      ("command", grid["command"]),
      ("made for", f"{grid['hardware']}, about {grid['minutes']} minutes"),
      ("state", f"{status(sweep)} They took {took:.1f} minutes."),
  ]


def to_html(sweeps: Sequence[Sweep], figures: Sequence[Mapping[str, tuple[str, str]]], title: str) -> str:
  """One page that needs nothing else.

  Args:
    sweeps: in order.
    figures: of each, name to caption and SVG.
    title: of the page.
  """
  escape = html.escape
  parts = [f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"]
  parts.append(f"<h1>{escape(title)}</h1><p>{escape(LEGEND)}</p>")
  for sweep, pictures in zip(sweeps, figures, strict=True):
    parts.append(f"<h2>{escape(sweep.grid['title'])}</h2><ul>")
    parts += [f"<li>{escape(name)}: <code>{escape(text)}</code></li>" for name, text in facts(sweep)]
    parts.append("</ul>")
    if not sweep.grid["comparable"]:
      parts.append(f"<p class='other'>{escape(OTHERS)}</p>")
    heads, rows = table(sweep)
    parts.append("<table><tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>")
    for row in rows:
      parts.append("<tr>" + "".join(f"<td class='{kind}'>{escape(text)}</td>" for text, kind in row) + "</tr>")
    parts.append("</table><p>Measured on:</p><ul>")
    parts += [f"<li>{letter}: {escape(hardware_text(machine))}</li>" for letter, machine in sweep.hardware.items()]
    parts.append("</ul>")
    for caption, svg in pictures.values():
      data = base64.b64encode(svg.encode()).decode()
      image = f"<img alt='{escape(caption)}' src='data:image/svg+xml;base64,{data}'>"
      parts.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")
    for name, failure in sweep.failed.items():
      parts.append(f"<details><summary class='deviates'>failed: {escape(name)}</summary><pre>{escape(failure['error'])}</pre></details>")
    parts.append("<h3>Settings</h3>")
    for name, cell in sweep.cells.items():
      gin = cell["records"][0].get("gin", "")
      text = f"{cell['command']}\n\n# started {cell['started']}, {cell['seconds']} s\n\n{gin}"
      parts.append(f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>")
  return "\n".join(parts) + "</html>\n"


def to_markdown(sweeps: Sequence[Sweep], figures: Sequence[Mapping[str, str]], title: str) -> str:
  """The same in Markdown.

  Args:
    sweeps: in order.
    figures: of each, path of a picture to its caption.
    title: of the page.
  """
  parts = [f"# {title}", "", LEGEND]
  for sweep, pictures in zip(sweeps, figures, strict=True):
    parts += ["", f"## {sweep.grid['title']}", ""]
    parts += [f"- {name}: `{text}`" for name, text in facts(sweep)]
    if not sweep.grid["comparable"]:
      parts += ["", OTHERS]
    heads, rows = table(sweep)
    parts += ["", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    parts += ["| " + " | ".join(text.replace("|", "\\|") for text, _ in row) + " |" for row in rows]
    parts += ["", "Measured on:", ""]
    parts += [f"- {letter}: {hardware_text(machine)}" for letter, machine in sweep.hardware.items()]
    for path, caption in pictures.items():
      parts += ["", f"![{caption}]({path})"]
    if sweep.failed:
      parts += ["", "Failed:", ""]
      parts += [f"- {name}: `{(failure['error'].splitlines() or ['?'])[-1]}`" for name, failure in sweep.failed.items()]
  return "\n".join(parts) + "\n"


def overview(sweeps: Sequence[Sweep], grids: Sequence[Mapping[str, Any]], title: str) -> str:
  """The page "what we reproduced, what needs other hardware", in Markdown.

  Args:
    sweeps: that were run.
    grids: all that there are; those without a sweep are listed with what they need.
    title: of the page.
  """
  done = {sweep.grid["name"]: sweep for sweep in sweeps}
  parts = [f"# {title}", "", "| grid | repeats | state | measured on | command |", "|---|---|---|---|---|"]
  for sweep in sweeps:
    machines = "; ".join(dict.fromkeys(f"{m['platform']}: {m['device']}, {m['cores']} cores" for m in sweep.hardware.values()))
    grid = sweep.grid
    parts.append(f"| {grid['name']} | {grid['title']} | {status(sweep)} | {machines or '–'} | `{grid['command']}` |")
  waiting = [grid for grid in grids if grid["name"] not in done]
  if waiting:
    parts += ["", "Not run here:", "", "| grid | repeats | needs | minutes, expected | command |", "|---|---|---|---|---|"]
    parts += [
        f"| {grid['name']} | {grid['title']} | {grid['hardware']} | {grid['minutes']} | `{grid['command']}` |"
        for grid in waiting
    ]
  return "\n".join(parts) + "\n"
