"""What a target and its drafts would do on a TPU slice, before anyone pays for one.

The real programs are compiled ahead of time; what the compiler says and what
its programs move is put through the paper's formulas. c and v are ratios of
modelled times (`analysis`), under one of its bounds. A call of one token is
taken at the faster of two ways to compile it: a slow baseline would flatter
speculation.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from specdec.networks.t5 import T5
from specdec.sharding import analysis as analysis_lib
from specdec.sharding import chips
from specdec.sharding import programs
from specdec.sharding.analysis import Analysis
from specdec.sharding.programs import Workload
from specdec.theory import speedup
from specdec.theory import tokens as theory_tokens

SUBLANES = 8  # Rows of a tile: scoring up to so many tokens costs as one does.
BOUNDS = ("schedule", "serial")  # Everything overlaps that may; nothing does.
# The compiler turns a product with one column into multiplications and sums, or, with this, does not.
_PRODUCTS = {"xla_tpu_enable_dot_strength_reduction": False}


class Case(NamedTuple):
  """One speed-up to predict, beside what is published of it if anything is.

  Attributes:
    task: what is decoded.
    drafter: a name among the drafts.
    temperature: of sampling.
    gamma: tokens drafted a step.
    alpha: acceptance.
    expected: the paper's own prediction, or None.
    measured: the paper's measurement, or None.
    c: the paper's, or None.
  """

  task: str
  drafter: str
  temperature: float
  gamma: int
  alpha: float
  expected: float | None = None
  measured: float | None = None
  c: float | None = None


@dataclasses.dataclass(frozen=True)
class Placement:
  """A draft in one of two ways: whole on every chip, or split over them.

  Attributes:
    drafter: its name.
    split: which way.
    encode: its encoder.
    calls: one token, drawn, in both ways to compile it.
    decode: `generate` by gamma.
    weights: bytes on a chip, counted from shapes.
    caches: bytes on a chip.
  """

  drafter: str
  split: bool
  encode: Analysis
  calls: tuple[Analysis, ...]
  decode: Mapping[int, Analysis]
  weights: int
  caches: int


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that was compiled.

  Attributes:
    topology: of the slice.
    chips: how many it has.
    workload: what is decoded.
    encode: the target's encoder.
    ones: the target's network on one token, in both ways to compile it.
    score: the target's network by tokens at once, from two on.
    plains: `generate` without a draft, in both ways.
    read_once: bytes that scoring must read on a chip, by tokens at once.
    weights: the target's bytes on a chip.
    caches: the target's.
    placements: of the drafts.
  """

  topology: str
  chips: int
  workload: Workload
  encode: Analysis
  ones: tuple[Analysis, ...]
  score: Mapping[int, Analysis]
  plains: tuple[Analysis, ...]
  read_once: Mapping[int, int]
  weights: int
  caches: int
  placements: tuple[Placement, ...]

  @property
  def chip(self) -> chips.Chip:
    """Of the slice."""
    return chips.chip_of(self.topology)

  def analyses(self) -> list[tuple[str, Analysis]]:
    """Every program, with whose it is."""
    found = [("target", one) for one in (self.encode, *self.ones, *self.score.values(), *self.plains)]
    for placement in self.placements:
      who = f"{placement.drafter}, {'split' if placement.split else 'whole'}"
      found += [(who, one) for one in (placement.encode, *placement.calls, *placement.decode.values())]
    return found

  def refused(self) -> list[tuple[str, Analysis]]:
    """Programs that the compiler refused, and those that need more than a chip has."""
    return [(who, one) for who, one in self.analyses() if one.refused or one.memory > self.chip.hbm]


class Prediction(NamedTuple):
  """What the compiled programs say of one case under one placement; all modelled.

  Attributes:
    c: draft call over plain step.
    v: scoring gamma + 1 tokens over scoring one.
    theorem: Theorem 3.8 with that v.
    whole: tokens a step, times a plain step over a speculative one: acceptance, residual and caches included.
  """

  c: float
  v: float
  theorem: float
  whole: float | None


def compile_plan(
    target: T5,
    drafts: Mapping[str, T5],
    topology: str,
    gammas: Sequence[int],
    decodes: Mapping[str, Sequence[int]],
    workload: Workload,
    splits: Sequence[bool] = (False, True),
    data: int = 1,
    folder: str | None = None,
    with_schedule: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
  """Compiles everything that the tables need.

  Args:
    target: the target's network.
    drafts: the drafts' by name.
    topology: of the slice, see `chips.slice_devices`.
    gammas: for which v is wanted.
    decodes: gammas for which the whole of `generate` is compiled, by draft.
    workload: what is decoded.
    splits: the ways that drafts are placed: False is whole, True is split.
    data: chips along the data axis.
    folder: where analyses are kept, see `analysis.analyse`.
    with_schedule: also read schedules.
    progress: told of each program before it is compiled.

  Raises:
    ValueError: an argument is out of its range, or libtpu is missing.
  """
  chips.chip_of(topology)
  strange = sorted(decodes.keys() - drafts.keys())
  if strange:
    raise ValueError(f"drafter: expected one of {', '.join(sorted(drafts)) or 'no drafts'}, found {strange[0]!r}.")
  every = sorted({*gammas, *(gamma for some in decodes.values() for gamma in some)})
  if not every or every[0] < 1:
    raise ValueError(f"gamma: expected at least one, each at least 1, found {every}.")
  mesh = chips.slice_mesh(topology, data)

  def analyse(program: programs.Program, options: Mapping[str, Any] | None = None) -> Analysis:
    progress(program.name)
    return analysis_lib.analyse(program, topology, folder, with_schedule, options)

  def both_ways(program: programs.Program) -> tuple[Analysis, ...]:
    products = program._replace(name=f"{program.name}, as products")
    return analyse(program), analyse(products, _PRODUCTS)

  on_slice = programs.sized_model(target, mesh, workload)
  counts = [1, *(gamma + 1 for gamma in every)]
  caches = lambda sized: programs.bytes_on_a_chip(programs.open_state(sized, workload, workload.max_new_tokens + 2))
  placements = []
  for name, module in drafts.items():
    for split in splits:
      draft = programs.sized_model(module, mesh, workload, split)
      placements.append(
          Placement(
              name,
              split,
              analyse(programs.encode(draft, workload)),
              both_ways(programs.draw_token(draft, workload)),
              {g: analyse(programs.decode(on_slice, draft, g, workload)) for g in sorted(set(decodes.get(name, ())))},
              programs.bytes_on_a_chip(draft.params),
              caches(draft),
          )
      )
  return Plan(
      topology,
      mesh.size,
      workload,
      analyse(programs.encode(on_slice, workload)),
      both_ways(programs.score(on_slice, workload, 1)),
      {count: analyse(programs.score(on_slice, workload, count)) for count in counts[1:]},
      both_ways(programs.decode(on_slice, None, 0, workload)),
      {count: programs.read_once(on_slice, workload, count) for count in counts},
      programs.bytes_on_a_chip(on_slice.params),
      caches(on_slice),
      tuple(placements),
  )


def fastest(analyses: Sequence[Analysis], temperature: float, bound: str, each: float = 0.0) -> float | None:
  """Seconds of the fastest of them, or of a step of its loop; None where none fits."""
  pieces = [one.piece(temperature) for one in analyses if not one.refused]
  return min((piece.seconds(bound) + each * sum(piece.collectives.values()) for piece in pieces), default=None)


def predict(
    plan: Plan, placement: Placement, case: Case, bound: str = "schedule", each: float = 0.0
) -> Prediction | None:
  """The speed-up of one draft; None where a program does not fit.

  Args:
    plan: from `compile_plan`.
    placement: of the draft.
    case: its temperature, gamma and alpha are read; scored programs must be there for that gamma.
    bound: of time, see `analysis.Piece.seconds`.
    each: seconds added for every collective, by hand; the model has none.
  """
  gamma, alpha = case.gamma, case.alpha
  seconds = lambda *analyses: fastest(analyses, case.temperature, bound, each)
  plain, one, block = seconds(*plan.plains), seconds(*plan.ones), seconds(plan.score[gamma + 1])
  call = seconds(*placement.calls)
  if None in (plain, one, block, call):
    return None
  c, v = call / plain, block / one
  step = seconds(*(analysis for g, analysis in placement.decode.items() if g == gamma))
  whole = None if step is None else float(theory_tokens.expected_tokens(alpha, gamma)) * plain / step
  return Prediction(c, v, float(speedup.walltime_factor(alpha, gamma, c, v)), whole)


class Choice(NamedTuple):
  """The best of what was compiled.

  Attributes:
    gamma: tokens drafted a step; 0 where none helps.
    factor: the speed-up.
    in_tile: the best with gamma + 1 within a tile of `SUBLANES` rows.
  """

  gamma: int
  factor: float
  in_tile: int


def best_gamma(plan: Plan, placement: Placement, case: Case, bound: str = "schedule", each: float = 0.0) -> Choice:
  """For a case's alpha and temperature, the gamma with the largest `Prediction.theorem`; a longer one must gain one per cent on one within a tile."""
  factors = {0: 1.0}
  for count in plan.score:
    found = predict(plan, placement, case._replace(gamma=count - 1), bound, each)
    if found is not None:
      factors[count - 1] = found.theorem
  short = max((g for g in factors if g + 1 <= SUBLANES), key=lambda g: factors[g])
  best = max(factors, key=lambda g: factors[g])
  if factors[best] < 1.01 * factors[short]:
    best = short
  return Choice(best, factors[best], short)


def break_even(plan: Plan, drafter: str, temperature: float, bound: str = "schedule") -> float | None:
  """Seconds a collective from which on a whole draft is better than a split one, by the bounds.

  Splitting shortens a call and adds collectives to it. None where the draft
  was not placed both ways or splitting shortens nothing.
  """
  both = {p.split: p.calls for p in plan.placements if p.drafter == drafter}
  if len(both) < 2 or any(calls[0].refused for calls in both.values()):
    return None
  gain = fastest(both[False], temperature, bound) - fastest(both[True], temperature, bound)
  sent = lambda split: sum(both[split][0].piece(temperature).collectives.values())
  more = sent(True) - sent(False)
  return gain / more if gain > 0 and more > 0 else None
