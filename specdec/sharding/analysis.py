"""One program on one slice: whether it fits, what it moves and sends, and bounds of its time.

Times are by a model: every byte of HBM at full speed, nothing waits for another
chip, nothing is launched. One bound takes all fetches to run beside all
instructions, the other none. They rank programs; they are not what a clock
would show.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
from importlib import metadata
import json
import os
from typing import Any

import jax

from specdec.sharding import chips
from specdec.sharding import hlo
from specdec.sharding import hlo_cost
from specdec.sharding import programs
from specdec.sharding import schedule
from specdec.sharding.chips import Chip
from specdec.sharding.programs import Program

_FORMAT = 4  # Of stored analyses; raise it when what is counted changes.


@dataclasses.dataclass(frozen=True)
class Piece:
  """A program, or one step of its decoding loop, on one chip.

  Attributes:
    flops: of products.
    hbm_read: bytes.
    hbm_written: bytes.
    collectives: how many run, by kind.
    sent: bytes of their results.
    operations: instructions that run.
    copied: bytes of arrays of the size of a weight that are only copied or transposed.
    roofline: seconds, the longer of all bytes at full bandwidth and all products at peak.
    schedule: seconds, the longer of all bytes at full bandwidth and the sum over
      instructions of the longer of its own bytes and its schedule's length:
      fetches ahead run beside them. None without schedules or a known clock.
    serial: seconds, the same with fetches ahead in line: nothing overlaps.
  """

  flops: float
  hbm_read: float
  hbm_written: float
  collectives: Mapping[str, int]
  sent: float
  operations: int
  copied: float
  roofline: float
  schedule: float | None
  serial: float | None

  @property
  def hbm(self) -> float:
    """Bytes read and written."""
    return self.hbm_read + self.hbm_written

  def seconds(self, bound: str = "schedule") -> float:
    """A bound by name: 'roofline', 'schedule' or 'serial'; the roofline where there are no schedules."""
    found = getattr(self, bound)
    return self.roofline if found is None else found


@dataclasses.dataclass(frozen=True)
class Analysis:
  """What the compiler made of a program.

  Attributes:
    name: of the program.
    refused: the compiler's reason where it does not fit; all else is then empty.
    arguments: bytes on a chip.
    results: bytes.
    aliased: bytes of results that lie in the memory of donated arguments.
    temporaries: bytes.
    code: bytes.
    is_step: whether the pieces are one step of the program's decoding loop; else they are all of it.
    greedy: for a batch that is all greedy; None where it was refused.
    sampled: for one that is sampled without top-k and top-p.
  """

  name: str
  refused: str = ""
  arguments: int = 0
  results: int = 0
  aliased: int = 0
  temporaries: int = 0
  code: int = 0
  is_step: bool = False
  greedy: Piece | None = None
  sampled: Piece | None = None

  def piece(self, temperature: float) -> Piece | None:
    """What runs at a temperature."""
    return self.sampled if temperature > 0 else self.greedy

  @property
  def memory(self) -> int:
    """Bytes that must be there at once."""
    return self.arguments + self.results - self.aliased + self.temporaries + self.code

  def as_data(self) -> dict[str, Any]:
    """For JSON."""
    return dataclasses.asdict(self)

  @classmethod
  def from_data(cls, data: Mapping[str, Any]) -> "Analysis":
    """The inverse of `as_data`."""
    pieces = {name: data[name] and Piece(**data[name]) for name in ("greedy", "sampled")}
    return cls(**{**data, **pieces})


def piece(
    module: hlo.Module,
    chip: Chip,
    computation: str | None,
    bundles: Mapping[str, int] | None,
    weights: frozenset[int] = frozenset(),
    branches: str = "dearest",
) -> Piece:
  """Counts and times a computation; None is the entry.

  Args:
    module: the compiled program.
    chip: that it was compiled for.
    computation: its name.
    bundles: length of the schedule of each instruction, from `schedule.read`.
    weights: elements of each weight on a chip; only copies of such a size count.
    branches: which of a conditional's run, see `hlo_cost.BRANCHES`.
  """
  cost = hlo_cost.count(module, computation, branches=branches)
  bytes_seconds = lambda size: size / chip.hbm_bandwidth
  roofline = max(bytes_seconds(cost.hbm), cost.flops / chip.flops)
  scheduled = serial = None
  if bundles is not None and chip.clock is not None:
    own = lambda one: one.times * max(bundles.get(one.name, 0) / chip.clock, bytes_seconds(one.hbm))
    ahead = ("copy-start", "slice-start", "dynamic-slice-start", "async-start")
    serial = sum(own(one) for one in cost.each)
    scheduled = max(bytes_seconds(cost.hbm), sum(own(one) for one in cost.each if one.opcode not in ahead))
  collectives = {kind: round(number) for kind, number in sorted(cost.collectives.items())}
  copied = sum(size for _, elements, size in hlo_cost.copies(module, computation, branches) if elements in weights)
  return Piece(
      cost.flops, cost.hbm_read, cost.hbm_written, collectives, cost.sent, round(cost.operations), copied,
      roofline, scheduled, serial,
  )  # fmt: skip


def analyse(
    program: Program,
    topology: str,
    folder: str | None = None,
    with_schedule: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Analysis:
  """Compiles a program and counts it.

  Args:
    program: from `programs`.
    topology: of the slice that its arguments lie on, see `chips.slice_devices`.
    folder: where analyses are kept by the content of their program, so that a
      plan that was stopped goes on; None keeps none.
    with_schedule: also read the final schedules; they must have been asked for
      with `schedule.ask` before the first program was compiled.
    options: of the compiler.
  """
  chip = chips.chip_of(topology)
  jitted = program.function
  if not hasattr(jitted, "lower"):
    jitted = jax.jit(program.function, donate_argnums=program.donate)
  lowered = jitted.lower(*program.arguments)
  file = None
  if folder is not None:
    file = os.path.join(folder, _content(lowered, topology, with_schedule, options) + ".json")
    if os.path.exists(file):
      with open(file, encoding="utf-8") as stored:
        return dataclasses.replace(Analysis.from_data(json.load(stored)), name=program.name)
  analysis = _compile(program, lowered, chip, with_schedule, options)
  if file is not None:
    os.makedirs(folder, exist_ok=True)
    with open(file + ".partial", "w", encoding="utf-8") as new:
      json.dump(analysis.as_data(), new)
    os.replace(file + ".partial", file)
  return analysis


def _compile(program: Program, lowered: Any, chip: Chip, with_schedule: bool, options: Any) -> Analysis:
  if with_schedule:
    schedule.forget()
  try:
    compiled = chips.compile_lowered(lowered, options)
  except chips.DoesNotFit as error:
    return Analysis(program.name, refused=str(error))
  memory = compiled.memory_analysis()
  module = hlo.parse(compiled.as_text())
  bundles = schedule.read(module) if with_schedule else None
  body = hlo_cost.open_loop(module)
  weights = programs.weight_sizes(program)
  return Analysis(
      program.name,
      arguments=memory.argument_size_in_bytes,
      results=memory.output_size_in_bytes,
      aliased=memory.alias_size_in_bytes,
      temporaries=memory.temp_size_in_bytes,
      code=memory.generated_code_size_in_bytes,
      is_step=body is not None,
      greedy=piece(module, chip, body, bundles, weights, "greedy"),
      sampled=piece(module, chip, body, bundles, weights, "sampled"),
  )


def _content(lowered: Any, topology: str, with_schedule: bool, options: Any) -> str:
  """A name for what the result depends on: program and shardings, slice, versions."""
  parts = (lowered.as_text(), topology, jax.__version__, metadata.version("libtpu"), with_schedule, options, _FORMAT)
  return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:24]
