"""A plan as tables, in Markdown, HTML and JSON; every column says where its figures come from.

`compiled`: printed by the compiler, or counted in the program that it made.
`modelled`: a bound of time, or what follows from one. `by hand`: from shapes, or
an assumption of the reader. `published`: of the paper. Nothing is measured.
"""

from collections.abc import Sequence
import dataclasses
import html
import json
from typing import Any

from specdec.sharding import plan as plan_lib
from specdec.sharding.analysis import Piece
from specdec.sharding.plan import Case, Placement, Plan

LABELS = ("compiled", "modelled", "by hand", "published", "")
NONE = "–"


@dataclasses.dataclass(frozen=True)
class Table:
  """One table.

  Attributes:
    title: above it.
    columns: heading and label of each; "" labels what is no figure.
    rows: cells; None is shown as a dash.
    notes: below it.
  """

  title: str
  columns: Sequence[tuple[str, str]]
  rows: Sequence[Sequence[Any]]
  notes: Sequence[str] = ()

  def __post_init__(self):
    for heading, label in self.columns:
      if label not in LABELS:
        raise ValueError(f"{self.title}, {heading}: expected one of the labels {LABELS}, found {label!r}.")
    for row in self.rows:
      if len(row) != len(self.columns):
        raise ValueError(f"{self.title}: expected {len(self.columns)} cells a row, found {len(row)}.")


def tables(plan: Plan, cases: Sequence[Case], each: Sequence[float] = (0.0,)) -> list[Table]:
  """All tables of a plan.

  Args:
    plan: from `plan.compile_plan`.
    cases: to predict.
    each: seconds a collective to assume; the first is that of the main columns.
  """
  return [
      memory_table(plan),
      traffic_table(plan),
      scoring_table(plan),
      draft_table(plan),
      case_table(plan, cases, each[0]),
      choice_table(plan, cases, each[0]),
      *([latency_table(plan, cases, each)] if len(each) > 1 else []),
  ]


def memory_table(plan: Plan) -> Table:
  """Does each program compile, and what must lie on a chip for it."""
  megabytes = lambda size: round(size / 1e6, 1)
  rows = []
  for who, one in plan.analyses():
    if one.refused:
      rows.append([who, one.name, f"refused: {one.refused}", *[None] * 6])
      continue
    fits = "yes" if one.memory <= plan.chip.hbm else "no"
    sizes = (one.arguments, one.temporaries, one.results, one.aliased, one.code, one.memory)
    rows.append([who, one.name, fits, *map(megabytes, sizes)])
  columns = [("model", ""), ("program", ""), ("compiles and fits", "compiled")]
  columns += [(f"{what} MB", "compiled") for what in ("arguments", "temporaries", "results", "aliased", "code", "all")]
  shares = [("the target", plan.weights, plan.caches)]
  shares += [(f"{p.drafter}, {_way(p)}", p.weights, p.caches) for p in plan.placements]
  notes = [f"By hand, on a chip: {who} has {megabytes(w)} MB of weights and {megabytes(c)} MB of caches." for who, w, c in shares]
  notes.append(
      f"A chip has {plan.chip.hbm / 1e9:.1f} GB of HBM for a program. `aliased` results lie in the memory of donated "
      "arguments: caches that are not copied."
  )
  return Table("Memory of a chip", columns, rows, notes)


def traffic_table(plan: Plan) -> Table:
  """What each program, or one step of its loop, moves and sends."""
  rows = []
  for who, one in plan.analyses():
    for piece, kind in ((one.greedy, "greedy"), (one.sampled, "sampled")):
      if piece is None or (kind == "sampled" and piece == one.greedy):
        continue
      rows.append([
          who, one.name, "a step" if one.is_step else "all", kind if one.greedy != one.sampled else "either",
          _mega(piece.hbm_read), _mega(piece.hbm_written), round(piece.flops / 1e9, 2), _collectives(piece),
          round(piece.sent / 1e3, 1), piece.operations, _mega(piece.copied), *map(_micro, _times(piece)),
      ])  # fmt: skip
  columns = [
      ("model", ""), ("program", ""), ("what of it", ""), ("rows are", ""), ("HBM read MB", "compiled"),
      ("HBM written MB", "compiled"), ("GFLOP", "compiled"), ("collectives", "compiled"), ("sent kB", "compiled"),
      ("operations", "compiled"), ("weights copied MB", "compiled"),
  ]  # fmt: skip
  columns += [(f"{bound} µs", "modelled") for bound in _TIMES]
  return Table("What a chip moves", columns, rows, [_BOUNDS])


def scoring_table(plan: Plan) -> Table:
  """The target's network on several tokens at once."""
  rows = []
  base = [plan_lib.fastest(plan.ones, 0.0, bound) for bound in _TIMES]
  for count, one in [*((1, one) for one in plan.ones), *plan.score.items()]:
    piece = one.greedy
    if piece is None:
      rows.append([one.name, *[None] * 9])
      continue
    times, once = _times(piece), plan.read_once[count]
    ratios = [None if b is None else round(seconds / b, 3) for seconds, b in zip(times, base)]
    rows.append([one.name, _mega(once), _mega(piece.hbm), round(piece.hbm / once, 4), *map(_micro, times), *ratios])
  columns = [("program", ""), ("weights and caches once MB", "by hand"), ("HBM MB", "compiled"), ("ratio", "compiled")]
  columns += [(f"{bound} µs", "modelled") for bound in _TIMES] + [(f"v, {bound}", "modelled") for bound in _TIMES]
  note = f"v is the time of so many tokens over that of one, the faster way. A tile has {plan_lib.SUBLANES} rows."
  return Table("Scoring several tokens at once", columns, rows, [note])


def draft_table(plan: Plan) -> Table:
  """Whole or split: what a draft's call costs."""
  rows = []
  for placement in plan.placements:
    for temperature in (0.0, 1.0):
      piece = placement.calls[0].piece(temperature)
      if piece is None:
        continue
      times = [plan_lib.fastest(placement.calls, temperature, bound) for bound in _TIMES]
      plain = [plan_lib.fastest(plan.plains, temperature, bound) for bound in _TIMES]
      costs = [None if p is None else round(t / p, 4) for t, p in zip(times, plain)]
      even = [plan_lib.break_even(plan, placement.drafter, temperature, bound) for bound in plan_lib.BOUNDS]
      even = even if placement.split else [None] * len(even)
      rows.append([
          placement.drafter, _way(placement), "greedy" if temperature == 0 else "sampled", _mega(piece.hbm),
          _collectives(piece), *map(_micro, times), *costs, *map(_micro, even),
      ])  # fmt: skip
  columns = [("draft", ""), ("placed", ""), ("rows are", ""), ("HBM MB", "compiled"), ("collectives", "compiled")]
  columns += [(f"{bound} µs", "modelled") for bound in _TIMES] + [(f"c, {bound}", "modelled") for bound in _TIMES]
  columns += [(f"better whole above, µs a collective, {bound}", "modelled") for bound in plan_lib.BOUNDS]
  notes = [
      "A call is the draft's network on one token, its law and a draw; c is its time over that of a step of the plain "
      "decoder. The last columns are the time of one collective, which the bounds leave out, from which on a whole draft is "
      "faster than a split one."
  ]
  return Table("Drafts", columns, rows, notes)


def case_table(plan: Plan, cases: Sequence[Case], each: float = 0.0) -> Table:
  """Predicted speed-ups, beside the published ones."""
  rows = []
  for case in cases:
    for placement in _placements(plan, case.drafter):
      found = [plan_lib.predict(plan, placement, case, bound, each) for bound in plan_lib.BOUNDS]
      pairs = [[None if f is None else getattr(f, name) for f in found] for name in ("c", "v", "theorem", "whole")]
      rows.append([
          case.task, case.drafter, f"{case.temperature:g}", case.gamma, case.alpha, case.c, case.expected, case.measured,
          _way(placement), _range(pairs[0], 3), _range(pairs[1], 3), _range(pairs[2], 2), _range(pairs[3], 2),
      ])  # fmt: skip
  published = "published" if any(case.measured is not None for case in cases) else "by hand"
  columns = [
      ("task", ""), ("draft", ""), ("T", ""), ("γ", ""), ("α", published), ("c", "published"),
      ("expected", "published"), ("measured", "published"), ("placed", ""), ("c here", "modelled"), ("v here", "modelled"),
      ("Theorem 3.8", "modelled"), ("whole program", "modelled"),
  ]  # fmt: skip
  notes = [
      "`Theorem 3.8`: (1 - α^(γ+1)) / ((1 - α)(γ c + v)). `whole program`: the same tokens a step, times a step of the plain "
      "decoder over a step of the speculative one, both as compiled, with law, acceptance and residual. The first number "
      "is by the bound `schedule`, the second by `serial`."
  ]
  if each:
    notes.append(f"With {each * 1e6:g} µs added for each collective, by hand.")
  return Table("Speed-ups", columns, rows, notes)


def choice_table(plan: Plan, cases: Sequence[Case], each: float = 0.0) -> Table:
  """The best γ of those compiled, and the better placement."""
  rows = []
  for case in {(c.task, c.drafter, c.temperature, c.alpha): c for c in cases}.values():
    found = [(p, plan_lib.best_gamma(plan, p, case, "schedule", each)) for p in _placements(plan, case.drafter)]
    if not found:
      continue
    best = max(found, key=lambda pair: pair[1].factor)
    for placement, choice in found:
      mark = "better" if placement is best[0] and len(found) > 1 else None
      rows.append([
          case.task, case.drafter, f"{case.temperature:g}", case.alpha, _way(placement), choice.gamma,
          _factor(choice.factor), choice.in_tile, mark,
      ])  # fmt: skip
  columns = [
      ("task", ""), ("draft", ""), ("T", ""), ("α", "by hand"), ("placed", ""), ("best γ", "modelled"),
      ("Theorem 3.8", "modelled"), (f"best γ with γ + 1 ≤ {plan_lib.SUBLANES}", "modelled"), ("this way is", "modelled"),
  ]  # fmt: skip
  gammas = ", ".join(str(count - 1) for count in plan.score)
  return Table(
      "Best γ and placement", columns, rows, [f"Of γ = {gammas}. A γ beyond a tile must gain one per cent on one within it."]
  )


def latency_table(plan: Plan, cases: Sequence[Case], each: Sequence[float]) -> Table:
  """Speed-ups again, with a time for each collective: the whole program where it was compiled, else the theorem."""
  rows = []
  for case in cases:
    for placement in _placements(plan, case.drafter):
      found = [plan_lib.predict(plan, placement, case, "schedule", one) for one in each]
      values = [None if f is None else _factor(f.theorem if f.whole is None else f.whole) for f in found]
      rows.append([case.task, case.drafter, f"{case.temperature:g}", case.gamma, case.measured, _way(placement), *values])
  columns = [("task", ""), ("draft", ""), ("T", ""), ("γ", ""), ("measured", "published"), ("placed", "")]
  columns += [(f"{one * 1e6:g} µs", "modelled") for one in each]
  return Table("Speed-ups, with a time for each collective", columns, rows, ["The time of a collective is by hand."])


def to_markdown(title: str, lead: Sequence[str], all_tables: Sequence[Table]) -> str:
  """Paragraphs and tables."""
  parts = [f"# {title}", *lead]
  for table in all_tables:
    heads = [f"{heading} [{label}]" if label else heading for heading, label in table.columns]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(map(_show, row)) + " |" for row in table.rows]
    parts += [f"## {table.title}", "\n".join(lines), *table.notes]
  return "\n\n".join(parts) + "\n"


def to_html(title: str, lead: Sequence[str], all_tables: Sequence[Table]) -> str:
  """One page, without scripts or other files."""
  cell = lambda tag, value, kind: f'<{tag}{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{html.escape(_show(value))}</{tag}>'
  kind = lambda label: label.replace(" ", "-")
  body = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{html.escape(text)}</p>" for text in lead)]
  for table in all_tables:
    heads = "".join(cell("th", f"{heading} [{label}]" if label else heading, kind(label)) for heading, label in table.columns)
    rows = "".join(
        "<tr>" + "".join(cell("td", value, kind(label)) for value, (_, label) in zip(row, table.columns)) + "</tr>\n"
        for row in table.rows
    )
    body.append(f"<h2>{html.escape(table.title)}</h2>\n<table>\n<tr>{heads}</tr>\n{rows}</table>")
    body += [f"<p>{html.escape(note)}</p>" for note in table.notes]
  return f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def to_json(title: str, lead: Sequence[str], all_tables: Sequence[Table], plan: Plan) -> str:
  """Tables with the label of each column, and every analysis in full."""
  data = {
      "title": title,
      "notes": list(lead),
      "topology": plan.topology,
      "chips": plan.chips,
      "workload": dataclasses.asdict(plan.workload),
      "tables": [
          {
              "title": table.title,
              "columns": [{"name": heading, "label": label} for heading, label in table.columns],
              "rows": [list(row) for row in table.rows],
              "notes": list(table.notes),
          }
          for table in all_tables
      ],
      "programs": [{"model": who, **one.as_data()} for who, one in plan.analyses()],
  }
  return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


_TIMES = ("roofline", *plan_lib.BOUNDS)
_BOUNDS = (
    "Times take every byte at full speed; no chip waits for another, nothing is launched. `roofline`: all bytes over the "
    "bandwidth, or all products over the peak. `schedule`: the sum over operations of the longer of their bytes and the "
    "bundles of their final schedule, fetches ahead running beside them. `serial`: the same, fetches ahead in line. Loops "
    "inside a collective count once."
)
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:80em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.2em .6em;border-bottom:1px solid #ddd;"
    "text-align:left;vertical-align:top}.modelled{background:#eef5ff}.published{background:#f3f7ea}.by-hand{background:#fbf3e4}"
)


def _placements(plan: Plan, drafter: str) -> list[Placement]:
  return [p for p in plan.placements if p.drafter == drafter]


def _way(placement: Placement) -> str:
  return "split" if placement.split else "whole"


def _collectives(piece: Piece) -> str:
  return ", ".join(f"{number} {kind}" for kind, number in piece.collectives.items()) or "none"


def _times(piece: Piece) -> list[float]:
  return [piece.seconds(bound) for bound in _TIMES]


def _mega(size: float) -> float:
  return round(size / 1e6, 1)


def _micro(seconds: float | None) -> float | None:
  return None if seconds is None else round(seconds * 1e6, 1)


def _factor(value: float | None) -> float | None:
  return None if value is None else round(value, 2)


def _range(values: Sequence[float | None], digits: int) -> str | None:
  """One number, or two where the bounds differ."""
  if None in values:
    return None
  shown = [f"{value:.{digits}f}" for value in values]
  return " … ".join(dict.fromkeys(shown))


def _show(value: Any) -> str:
  return NONE if value is None else str(value)
