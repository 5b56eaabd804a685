"""Records of a sweep as rows: published, predicted and measured side by side, and what deviates.

A grid's `quantities` are dicts: `name`; `measured`, the field of a record;
optionally `error` (a field with a standard error) or `low` and `high` (fields of
a 95 % interval), `predicted` (a field), `published` (a key of a cell's published
values) and `digits` after the point (2), to which published values are rounded.

A cell's `published` is a list of dicts of values; the ones whose `when` agrees
with a record belong to it.
"""

from collections.abc import Mapping, Sequence
import string
from typing import Any, NamedTuple

from specdec.benchmark import grid as grid_lib

WITHIN, DEVIATES, UNKNOWN = "within", "deviates", "unknown"
# Fields of a record that tell the records of one cell apart.
BY = ("batch_size", "temperature", "gamma", "lenience")
_HARDWARE = ("platform", "device", "devices", "processor", "cores", "jax", "python", "commit", "date")


class Entry(NamedTuple):
  """One quantity of one row.

  Attributes:
    measured: the value, None where there is none.
    low: end of its 95 % interval, or None.
    high: the other end.
    predicted: what the theory says from the measured alpha, c and v, or None.
    published: or None.
    against_predicted: `WITHIN`, `DEVIATES` or `UNKNOWN` (nothing to compare).
    against_published: the same; `UNKNOWN` too where the models are others.
    digits: after the point.
  """

  measured: float | None
  low: float | None
  high: float | None
  predicted: float | None
  published: float | None
  against_predicted: str
  against_published: str
  digits: int


class Row(NamedTuple):
  """One record of one cell.

  Attributes:
    cell: its name.
    labels: what is shown of it.
    entries: by the name of the quantity.
    hardware: letter of the machine it was measured on.
    record: the record.
  """

  cell: str
  labels: dict[str, Any]
  entries: dict[str, Entry]
  hardware: str
  record: dict[str, Any]


class Sweep(NamedTuple):
  """Everything that a folder of results holds.

  Attributes:
    grid: the grid.
    rows: of the cells that are done, in the order of the grid.
    hardware: letter to what it stands for.
    cells: records of the cells that are done, by name.
    failed: what is known of the ones that failed, by name.
    open: names of the ones that did not run.
  """

  grid: dict[str, Any]
  rows: list[Row]
  hardware: dict[str, dict[str, Any]]
  cells: dict[str, dict[str, Any]]
  failed: dict[str, dict[str, Any]]
  open: list[str]


def compare(measured: float | None, low: float | None, high: float | None, other: float | None, slack: float) -> str:
  """Whether `other` lies within the interval of a measurement, widened by `slack` (half a printed digit).

  Example:
    >>> compare(0.61, 0.59, 0.63, 0.62, 0.005), compare(0.61, 0.59, 0.63, 0.75, 0.005)
    ('within', 'deviates')
  """
  if measured is None or other is None or low is None or high is None:
    return UNKNOWN
  return WITHIN if low - slack <= other <= high + slack else DEVIATES


def entry(quantity: Mapping[str, Any], record: Mapping[str, Any], published: Mapping[str, Any], comparable: bool) -> Entry:
  """One quantity of a record, compared with what the theory and the paper say."""
  pick = lambda name: record.get(quantity[name]) if name in quantity else None
  measured, digits = pick("measured"), quantity.get("digits", 2)
  low, high = pick("low"), pick("high")
  error = pick("error")
  if error is not None and measured is not None:
    low, high = measured - 1.96 * error, measured + 1.96 * error
  predicted, printed = pick("predicted"), published.get(quantity.get("published", ""))
  return Entry(
      measured, low, high, predicted, printed,
      compare(measured, low, high, predicted, 0.0),
      compare(measured, low, high, printed, 0.5 * 10.0**-digits) if comparable else UNKNOWN,
      digits,
  )  # fmt: skip


def published_for(published: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> dict[str, Any]:
  """The published values that belong to a record.

  Example:
    >>> published_for([{"when": {"lenience": 0.5}, "alpha": 0.71}], {"lenience": 0.5})
    {'alpha': 0.71}
  """
  found = {}
  for values in published:
    if all(record.get(name) == value for name, value in values.get("when", {}).items()):
      found |= {name: value for name, value in values.items() if name != "when"}
  return found


def read(folder: str) -> Sweep:
  """Reads a folder that `--mode=sweep` wrote.

  Raises:
    ValueError: it holds no sweep.
  """
  results = grid_lib.Results(folder)
  grid = results.read_grid()
  cells, failed, open_, rows, hardware = {}, {}, [], [], {}
  for cell in grid["cells"]:
    name, record = cell["name"], results.record(cell["name"])
    if record is None:
      failure = results.failure(name)
      if failure is None:
        open_.append(name)
      else:
        failed[name] = failure
      continue
    cells[name] = record
    for one in record["records"]:
      machine = {key: one.get(key) for key in _HARDWARE}
      letter = next((letter for letter, known in hardware.items() if known == machine), None)
      if letter is None:
        letter = _letter(len(hardware))
        hardware[letter] = machine
      labels = {**cell["labels"], **{key: one[key] for key in BY if key in one and key not in cell["labels"]}}
      values = published_for(cell["published"], one)
      entries = {q["name"]: entry(q, one, values, grid["comparable"]) for q in grid["quantities"]}
      rows.append(Row(name, labels, entries, letter, one))
  return Sweep(grid, rows, hardware, cells, failed, open_)


def _letter(number: int) -> str:
  letters = string.ascii_lowercase
  return letters[number] if number < len(letters) else _letter(number // len(letters) - 1) + letters[number % len(letters)]
