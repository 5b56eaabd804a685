"""Which figures the rows of a sweep can fill, and with what."""

from collections.abc import Sequence
from typing import Any

from specdec.benchmark import plots
from specdec.benchmark.results import Row, Sweep

_MOST = 10  # Series of one plot.


def series_name(row: Row, without: Sequence[str] = ()) -> str:
  """The labels of a row in one line, but for those in `without`."""
  show = lambda value: f"{value:g}" if isinstance(value, float) else str(value)
  return ", ".join(f"{key} {show(value)}" for key, value in row.labels.items() if key not in without)


def figures(sweep: Sweep) -> dict[str, tuple[str, Any]]:
  """Name of a file to its caption and figure, for every figure that the records have something to say of."""
  found = {}
  timed = [row for row in sweep.rows if "ratio" in row.record]
  single = [row for row in timed if row.record["batch_size"] == 1] or timed
  if timed:
    name = lambda row: f"γ {row.record['gamma']}"
    gammas = tuple(sorted({row.record["gamma"] for row in single} | {1, 10}))
    points = [(row.record["alpha"], row.record["tokens_per_call"], name(row)) for row in single]
    found["figure2"] = ("Figure 2: tokens per target call against α.", plots.tokens_per_call(points, gammas))
    best = []
    for series, rows in _grouped(single).items():
      if len({row.record["gamma"] for row in rows}) > 1:
        fastest = max(rows, key=lambda row: row.record["ratio"])
        best.append((fastest.record["alpha"], fastest.record["gamma"], series))
    found["figure3"] = ("Figure 3: the best γ against α.", plots.best_gamma(best[:_MOST]))
    points = [(row.record["alpha"], row.record["ratio"], name(row)) for row in single]
    found["figure4"] = ("Figure 4: factors of time and operations against α.", plots.factors(points, gammas))
    series = {
        key: [{k: row.record[k] for k in ("gamma", "ratio", "low", "high", "predicted")} for row in rows]
        for key, rows in list(_grouped(timed).items())[:_MOST]
    }
    found["speed_by_gamma"] = ("Speed-up against γ.", plots.speed_by_gamma(series))
  places = {}
  for row in sweep.rows:
    reached = row.record.get("reached_by_position") or []
    shares = [a / r for a, r in zip(row.record.get("accepted_by_position", []), reached) if r]
    if shares:
      places[series_name(row)] = shares
  if places:
    longest = sorted(places, key=lambda key: -len(places[key]))[:_MOST]
    figure = plots.acceptance_by_position({key: places[key] for key in places if key in longest})
    found["by_position"] = ("Acceptance by place in the draft.", figure)
  if len({row.record.get("lenience") for row in sweep.rows}) > 1:
    series = {}
    for row in sweep.rows:
      entry = row.entries.get("alpha")
      if entry is not None and entry.measured is not None:
        error = row.record.get("standard_error", 0.0)
        point = {"lenience": row.record["lenience"], "alpha": entry.measured, "error": error, "published": entry.published}
        series.setdefault(series_name(row, ("lenience",)), []).append(point)
    figure = plots.acceptance_by_lenience(dict(list(series.items())[:_MOST]))
    found["by_lenience"] = ("Acceptance against lenience, appendix A.5.", figure)
  return found


def _grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
  """Rows that differ in nothing but gamma."""
  groups: dict[str, list[Row]] = {}
  for row in rows:
    groups.setdefault(series_name(row, ("gamma",)), []).append(row)
  return groups
