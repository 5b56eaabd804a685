"""What a run of `--mode=trees` shows of its records: tables in Markdown, and plots."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.benchmark import lines
from specdec.benchmark import report

Record = Mapping[str, Any]

CELLS = (
    "temperature", "size", "method", "tokens_per_step", "standard_error", "drafted_per_step", "ms_per_token",
    "ms_per_step", "target_ms", "propose_ms", "build_ms", "build_share",
)  # fmt: skip
BUDGETS = ("temperature", "predicted_size", "predicted_speed", "measured_size", "measured_ms_per_token")
_DIFFERENCES = ("temperature", "size", "difference", "standard_error")
_LEAST = 5  # Tokens of a bin of draft probability that is drawn.


def _kind(records: Sequence[Record], kind: str) -> list[Record]:
  return [r for r in records if r["kind"] == kind]


def cells(records: Sequence[Record], methods: Sequence[str]) -> str:
  """The table of the records of kind 'cell', by temperature, size and method."""
  order = lambda r: (r["temperature"], r["size"], methods.index(r["method"]))
  return report.table(sorted(_kind(records, "cell"), key=order), CELLS)


def differences(records: Sequence[Record], one: str, other: str) -> list[dict[str, float]]:
  """Tokens a step of one method less those of the other at each temperature and size, with a standard error.

  The error is that of two independent means; both decode the same sentences, so
  that it is rather too large.
  """
  found = {(r["temperature"], r["size"], r["method"]): r for r in _kind(records, "cell")}
  rows = []
  for temperature, size in sorted({key[:2] for key in found}):
    a, b = (found.get((temperature, size, method)) for method in (one, other))
    if a and b:
      error = (a["standard_error"] ** 2 + b["standard_error"] ** 2) ** 0.5
      difference = a["tokens_per_step"] - b["tokens_per_step"]
      rows.append(dict(temperature=temperature, size=size, difference=difference, standard_error=error))
  return rows


def page(records: Sequence[Record], methods: Sequence[str]) -> str:
  """All tables, with what their columns mean and where they were measured."""
  settings, machine = records[0]["settings"], records[0]
  parts = [
      "# Token trees at equal budgets",
      f"{settings['sentences']} sentences, batch {settings['batch_size']}, at most {settings['max_new_tokens']} new tokens; "
      f"{machine['processor'] or machine['machine']}, {machine['cores']} cores, jax {machine['jax']}, {machine['date'][:10]}.",
      "Times are of whole decodes over steps (ms_per_step) and tokens (ms_per_token), encoders included. Of a step, "
      "target_ms is the target scoring size + 1 tokens, propose_ms the whole proposal with the draft's calls, build_ms the "
      "building of the tree without them (laws, drawing children, growing, masks), each measured in a loop of its own; "
      "build_share is build_ms over ms_per_step. The rest is acceptance, commit and the share of the encoders.",
      cells(records, methods),
  ]
  rows = differences(records, "dyspec", "sequoia")
  if rows:
    parts += ["Tokens a step of DySpec (greedy) less those of Sequoia:", report.table(rows, _DIFFERENCES)]
  budgets = _kind(records, "budget")
  if budgets:
    parts += ["The best size for Sequoia by its cost model, and as measured:", report.table(budgets, BUDGETS)]
  return "\n\n".join(parts) + "\n"


def _panels(records: Sequence[Record], methods: Sequence[str], y: str, error: str | None, extra: str | None = None):
  """For each temperature its title and, by method, the points (size, y, error); `extra` is drawn once."""
  found = _kind(records, "cell")
  for t in dict.fromkeys(r["temperature"] for r in found):
    series = {}
    for method in methods:
      mine = [r for r in found if (r["temperature"], r["method"]) == (t, method)]
      if mine:
        series[method] = sorted((r["size"], r[y], r[error] if error else 0.0) for r in mine)
    if extra:
      series["target alone"] = sorted({r["size"]: (r["size"], r[extra], 0.0) for r in found if r["temperature"] == t}.values())
    yield f"T = {t:g}", series


def tokens_plot(records: Sequence[Record], methods: Sequence[str]) -> str:
  """Tokens a step against drafted nodes, by temperature, with standard errors."""
  plots = list(_panels(records, methods, "tokens_per_step", "standard_error"))
  return lines.panels(plots, "drafted nodes a step", "tokens a step", log_x=True)


def time_plot(records: Sequence[Record], methods: Sequence[str]) -> str:
  """Milliseconds of a step against drafted nodes, by temperature, beside the target's call for as many tokens."""
  plots = list(_panels(records, methods, "ms_per_step", None, "target_ms"))
  return lines.panels(plots, "drafted nodes a step", "ms a step", log_x=True)


def premise_plot(records: Sequence[Record]) -> str:
  """Mean acceptance in each bin of draft probability, with a binomial error, by temperature."""

  def points(record):
    for weight, probability, accepted in zip(record["weight"], record["probability"], record["accepted"]):
      if weight >= _LEAST:
        rate = accepted / weight
        yield probability / weight, rate, (max(rate * (1 - rate), 0.0) / weight) ** 0.5

  plots = [(f"T = {r['temperature']:g}", {"acceptance": list(points(r))}) for r in _kind(records, "premise")]
  return lines.panels(plots, "draft probability", "acceptance", diagonal=True)
