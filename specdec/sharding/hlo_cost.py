"""What a compiled program moves, computes and sends, counted from its HLO.

XLA's own `cost_analysis` counts the body of a loop once, counts on-chip memory
as if it were HBM, and knows no time for what chips send to each other. Here a
loop's body counts as often as it runs, HBM is kept apart from memory on the
chip, a slice costs its own bytes and not those of what it is cut from, and an
array is as large as its tiles.

Figures are of one chip. They are counted, not measured.
"""

from collections.abc import Callable, Mapping
import collections
import dataclasses
import re

from specdec.sharding.hlo import Computation, HBM, Instruction, Module, Shape

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all", "ragged-all-to-all")
# Names for what is there, and waiting for what was started: they move nothing.
_FREE = frozenset((
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id", "replica-id",
    "add-dependency", "optimization-barrier", "async-update", "async-done", "copy-done", "opt-barrier",
))  # fmt: skip
_FREE_CALLS = re.compile(r'custom_call_target="(AllocateBuffer|ConcatBitcast|Sharding|AssumeGatherIndicesInBound)"')
_ALIASES = frozenset(("bitcast", "get-tuple-element", "reshape", "opt-barrier", "optimization-barrier"))
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))


@dataclasses.dataclass
class Cost:
  """Sums over a program, of one chip.

  Attributes:
    flops: of products, 2 a multiplication with its addition.
    hbm_read: bytes.
    hbm_written: bytes.
    sent: bytes of the results of collectives.
    collectives: how many run, by kind.
    operations: how many instructions run.
    loops: times that each loop runs, by name; None where the program decides.
    each: of every instruction.
  """

  flops: float = 0.0
  hbm_read: float = 0.0
  hbm_written: float = 0.0
  sent: float = 0.0
  collectives: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  operations: float = 0.0
  loops: dict[str, int | None] = dataclasses.field(default_factory=dict)
  each: list["OperationCost"] = dataclasses.field(default_factory=list)

  @property
  def hbm(self) -> float:
    """Bytes read and written."""
    return self.hbm_read + self.hbm_written

  def add(self, other: "Cost") -> None:
    """Adds another program's sums."""
    for name in ("flops", "hbm_read", "hbm_written", "sent", "operations"):
      setattr(self, name, getattr(self, name) + getattr(other, name))
    self.collectives.update(other.collectives)
    self.loops.update(other.loops)
    self.each += other.each


@dataclasses.dataclass(frozen=True)
class OperationCost:
  """One instruction: how often it runs, and what one run costs."""

  name: str
  opcode: str
  times: float
  flops: float
  hbm: float


# Which branches of conditionals run, by how deep they lie: the cheapest throughout, as for a batch that is all greedy;
# the dearest of the outer ones, as for one that is sampled without masks; the dearest throughout.
BRANCHES = {"greedy": lambda depth: min, "sampled": lambda depth: min if depth else max, "dearest": lambda depth: max}


def count(
    module: Module, computation: str | None = None, trips: Mapping[str, int] | None = None, branches: str = "dearest"
) -> Cost:
  """Counts a program, or one computation of it.

  Args:
    module: from `hlo.parse`.
    computation: None is the whole program; `open_loop` names the body of the
      decoding loop.
    trips: how often loops run whose number the program does not say, by name;
      others of them count once.
    branches: which of them count, a name of `BRANCHES`; the bytes that they move
      say which is cheap.
  """
  return _Counter(module, trips or {}, BRANCHES[branches]).computation(computation or module.entry, 1.0, 0)


def open_loop(module: Module) -> str | None:
  """The body of the outermost loop whose number of runs is not fixed: the decoding loop. None without one."""
  waiting = [module.entry]
  while waiting:
    computation = module.computations[waiting.pop(0)]
    for instruction in computation.values():
      if instruction.opcode == "while":
        body = instruction.attribute("body")
        if trip_count(module, instruction) is None:
          return body
        waiting.append(body)
      elif instruction.opcode == "call":
        waiting.append(instruction.attribute("to_apply"))
  return None


def trip_count(module: Module, loop: Instruction) -> int | None:
  """How often a loop runs, where the program says so."""
  known = re.search(r'"?known_trip_count"?:\{"n":"(\d+)"', loop.attributes)
  if known:
    return int(known[1])
  condition = module.computations[loop.attribute("condition")]
  root = condition.root
  if root.opcode != "compare" or "direction=LT" not in root.attributes:
    return None
  bounds = [condition[name] for name in root.operands if condition[name].opcode == "constant"]
  counted = any(condition[name].opcode in ("get-tuple-element", "parameter") for name in root.operands)
  return int(bounds[0].argument) if counted and bounds and re.fullmatch(r"\d+", bounds[0].argument) else None


def copies(module: Module, computation: str | None = None, branches: str = "dearest") -> list[tuple[str, int, float]]:
  """Instructions that only copy or transpose; weights that are laid out anew in every step would be among them.

  Fetching into on-chip memory is not copying.

  Args:
    module: from `hlo.parse`.
    computation: None is the whole program.
    branches: as for `count`.

  Returns:
    Of each: its name, the elements of its result, and the bytes that its runs write.
  """
  found = []
  owner = {name: c for c in module.computations.values() for name in c}
  for one in count(module, computation, branches=branches).each:
    instruction = owner[one.name][one.name]
    only_moves = instruction.opcode in ("copy", "transpose")
    results = _results(instruction)
    if instruction.opcode == "copy-start":
      source = owner[one.name][instruction.operands[0]].shapes[0]
      only_moves = source.space == results[0].space == HBM
    if instruction.opcode == "fusion":
      inner = module.computations[instruction.attribute("calls")]
      real = {i.opcode for i in inner.values()} - _FREE - _ALIASES - {"convert"}
      only_moves = bool(real) and real <= {"copy", "transpose"}
    if only_moves:
      found.append((one.name, sum(s.size for s in results), one.times * sum(s.bytes for s in results)))
  return found


class _Counter:
  """Walks the computations of one module."""

  def __init__(self, module: Module, trips: Mapping[str, int], choose: Callable[[int], Callable[..., Cost]]):
    self.module = module
    self.trips = trips
    self.choose = choose

  def computation(self, name: str, times: float, depth: int) -> Cost:
    """The sum over a computation that stands in `depth` conditionals."""
    total = Cost()
    computation = self.module.computations[name]
    for instruction in computation.values():
      total.add(self.instruction(computation, instruction, times, depth))
    return total

  def instruction(self, computation: Computation, instruction: Instruction, times: float, depth: int) -> Cost:
    opcode = instruction.opcode
    if opcode == "while":
      trips = trip_count(self.module, instruction)
      often = self.trips.get(instruction.name, 1) if trips is None else trips
      cost = self.computation(instruction.attribute("body"), times * often, depth)
      cost.loops[instruction.name] = trips
      return cost
    if opcode == "conditional":
      found = [self.computation(name, times, depth + 1) for name in instruction.called]
      return self.choose(depth)(found, key=lambda cost: (cost.hbm, cost.operations))
    if opcode == "call":
      return self.computation(instruction.attribute("to_apply"), times, depth)
    if opcode in _FREE or opcode.endswith("-done") or _FREE_CALLS.search(instruction.attributes):
      return Cost()
    read, written = self.moved(computation, instruction)
    flops = self.flops(computation, instruction)
    kind = opcode.removesuffix("-start")
    if opcode == "async-start":
      kind = self.module.computations[instruction.attribute("calls")].root.opcode
    is_collective = kind in COLLECTIVES
    return Cost(
        flops * times,
        read * times,
        written * times,
        sum(shape.bytes for shape in _results(instruction)) * times if is_collective else 0.0,
        collections.Counter({kind: times}) if is_collective else collections.Counter(),
        times,
        {},
        [OperationCost(instruction.name, opcode, times, flops, read + written)],
    )

  def moved(self, computation: Computation, instruction: Instruction) -> tuple[float, float]:
    """HBM bytes that one run reads and writes."""
    opcode = instruction.opcode
    results = _results(instruction)
    written = _in_hbm(results)
    arrays = [computation[name].shapes for name in instruction.operands]
    if opcode in ("fusion", "async-start") and instruction.attribute("calls") in self.module.computations:
      return self.fusion(self.module.computations[instruction.attribute("calls")], arrays, results)
    if opcode in ("copy-start", "slice-start", "dynamic-slice-start"):
      source = arrays[0][0]
      size = min(source.bytes, results[0].bytes)
      return (size if source.space == HBM else 0), written
    if opcode in _SLICES:
      return (min(_in_hbm(arrays[0]), results[0].bytes)), written
    if opcode == "dynamic-update-slice":
      update = arrays[1]
      return _in_hbm(update), (sum(s.bytes for s in update) if results[0].space == HBM else 0)
    return sum(_in_hbm(shapes) for shapes in arrays), written

  def fusion(self, inner: Computation, arrays: list[tuple[Shape, ...]], results: tuple[Shape, ...]) -> tuple[float, float]:
    read = 0.0
    for parameter, shapes in zip(inner.parameters, arrays):
      read += min(self.used(inner, parameter), _in_hbm(shapes)) if _in_hbm(shapes) else 0
    producers = [inner[name] for name in inner.root.operands] if inner.root.opcode == "tuple" else [inner.root]
    written = sum(
        min(shape.bytes, self.stored(inner, producer))
        for shape, producer in zip(results, producers)
        if shape.space == HBM
    )
    return read, written

  def used(self, computation: Computation, value: Instruction) -> float:
    """Bytes of `value` that the instructions of a fusion look at."""
    full = sum(shape.bytes for shape in value.shapes)
    if value.is_root and value.opcode != "parameter":
      return full
    total = 0.0
    for user in computation.users.get(value.name, ()):
      if user.opcode in _ALIASES:
        total += self.used(computation, user)
      elif user.opcode in _SLICES and user.operands[0] == value.name:
        total += user.shapes[0].bytes
      elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
        total += 0  # Written in place.
      elif user.opcode == "fusion":
        inner = self.module.computations[user.attribute("calls")]
        for place, name in enumerate(user.operands):
          if name == value.name:
            total += self.used(inner, inner.parameters[place])
      else:
        return full
    return min(total, full)

  def stored(self, computation: Computation, producer: Instruction) -> float:
    """Bytes that a result of a fusion writes."""
    while producer.opcode in _ALIASES and producer.operands:
      producer = computation[producer.operands[0]]
    if producer.opcode == "dynamic-update-slice":
      return sum(shape.bytes for shape in computation[producer.operands[1]].shapes)
    if producer.opcode == "fusion":
      inner = self.module.computations[producer.attribute("calls")]
      return self.stored(inner, inner.root)
    if producer.opcode == "parameter":
      return 0.0  # An operand that passes through.
    return sum(shape.bytes for shape in producer.shapes)

  def flops(self, computation: Computation, instruction: Instruction) -> float:
    if instruction.opcode in ("fusion", "async-start"):
      inner = self.module.computations.get(instruction.attribute("calls"))
      return sum(self.flops(inner, i) for i in inner.values()) if inner else 0.0
    if instruction.opcode not in ("dot", "convolution"):
      return 0.0
    left, right = (computation[name].shapes[0].dims for name in instruction.operands[:2])
    if instruction.opcode == "dot":
      axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
      contracted = [left[int(axis)] for axis in axes[1].split(",") if axis]
    else:  # TPU's form of a product: 'bf_io->bf', whose second operand is contracted over all but `o` and batches.
      labels = re.search(r"dim_labels=\w+_(\w+)->\w+", instruction.attributes)
      contracted = [size for label, size in zip(labels[1], right) if label != "o"]
    product = 2.0 * instruction.shapes[0].size
    for size in contracted:
      product *= size
    return product


def _results(instruction: Instruction) -> tuple[Shape, ...]:
  """What an instruction makes; a start's tuple also repeats its operands and holds a flag."""
  shapes = instruction.shapes
  if not instruction.opcode.endswith("-start") or len(shapes) < 2:
    return shapes
  if instruction.opcode == "copy-start":
    return shapes[:1]
  if instruction.opcode == "all-reduce-start":
    return shapes
  return shapes[1:2]


def _in_hbm(shapes: tuple[Shape, ...]) -> float:
  return float(sum(shape.bytes for shape in shapes if shape.space == HBM))
