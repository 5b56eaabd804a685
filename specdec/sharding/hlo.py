"""Compiled programs as data: a reader of XLA's HLO text, as `compiled.as_text()` prints it.

Only what costs are counted from: instructions, their operands, and shapes with
the layout that the compiler chose.

Source: the text format of XLA's HLO and of its layouts (openxla.org/xla/shapes).
"""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import math
import re

_ITEM_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2", "s4", "u4"), 1),
    **dict.fromkeys(("s16", "u16", "bf16", "f16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%([\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+)")
HBM = 0  # The memory space of an array without one; others are on the chip.


@dataclasses.dataclass(frozen=True)
class Shape:
  """One array.

  Attributes:
    dtype: XLA's name.
    dims: sizes.
    minor_to_major: axes, the fastest first; () where the text gives no layout.
    tile: sizes of the first tile, () without one.
    space: memory space; `HBM` or one on the chip.
  """

  dtype: str
  dims: tuple[int, ...]
  minor_to_major: tuple[int, ...] = ()
  tile: tuple[int, ...] = ()
  space: int = HBM

  @property
  def size(self) -> int:
    """Elements, without padding."""
    return math.prod(self.dims)

  @functools.cached_property
  def bytes(self) -> int:
    """Bytes in memory, with the padding of the tile."""
    dims = list(self.dims)
    for axis, tile in zip(self.minor_to_major, reversed(self.tile)):
      dims[axis] = -(-dims[axis] // tile) * tile
    return math.prod(dims) * _ITEM_BYTES[self.dtype]


@functools.lru_cache(maxsize=1 << 16)
def parse_shapes(text: str) -> tuple[Shape, ...]:
  """The arrays of a type, which may be a tuple.

  Example:
    >>> [shape.bytes for shape in parse_shapes("(bf16[3,5]{1,0:T(8,128)(2,1)S(3)}, s32[])")]
    [2048, 4]
  """
  shapes = []
  for dtype, dims, layout in _ARRAY.findall(text):
    if dtype not in _ITEM_BYTES:
      continue  # Tokens and keys have no bytes.
    order, _, rest = layout.partition(":")
    tile, space = _TILE.search(rest), _SPACE.search(rest)
    shapes.append(
        Shape(
            dtype,
            _numbers(dims),
            _numbers(order) if re.fullmatch(r"[\d,]*", order) else (),
            _numbers(tile[1]) if tile else (),
            int(space[1]) if space else HBM,
        )
    )
  return tuple(shapes)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One instruction.

  Attributes:
    name: unique in its module.
    opcode: such as 'fusion'.
    shapes: of its result, one an array.
    operands: names of instructions of the same computation.
    argument: what stands between its parentheses.
    attributes: what stands behind them.
    is_root: whether its result is the computation's.
  """

  name: str
  opcode: str
  shapes: tuple[Shape, ...]
  operands: tuple[str, ...]
  argument: str
  attributes: str
  is_root: bool

  def attribute(self, name: str) -> str | None:
    """The value of `name=value` or `name=%value`."""
    found = re.search(rf"\b{name}=%?([\w.\-]+)", self.attributes)
    return found[1] if found else None

  @property
  def called(self) -> tuple[str, ...]:
    """Computations that a conditional chooses from."""
    found = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
    if found:
      return tuple(_OPERAND.findall(found[1]))
    return tuple(filter(None, (self.attribute("true_computation"), self.attribute("false_computation"))))

  @property
  def origin(self) -> str:
    """Where it stands in the traced program, such as 'jit(generate)/while/body/dot_general'."""
    found = re.search(r'op_name="([^"]*)"', self.attributes)
    return found[1] if found else ""


class Computation(Mapping[str, Instruction]):
  """Instructions by name, in order."""

  def __init__(self, instructions: Iterator[Instruction]):
    self._instructions = {i.name: i for i in instructions}

  def __getitem__(self, name: str) -> Instruction:
    return self._instructions[name]

  def __iter__(self) -> Iterator[str]:
    return iter(self._instructions)

  def __len__(self) -> int:
    return len(self._instructions)

  @functools.cached_property
  def root(self) -> Instruction:
    """The one whose result is the computation's."""
    return next(i for i in self.values() if i.is_root)

  @functools.cached_property
  def parameters(self) -> list[Instruction]:
    """In order."""
    found = [i for i in self.values() if i.opcode == "parameter"]
    return sorted(found, key=lambda i: int(i.argument))

  @functools.cached_property
  def users(self) -> dict[str, list[Instruction]]:
    """The instructions that read each one."""
    users = {}
    for instruction in self.values():
      for name in dict.fromkeys(instruction.operands):
        users.setdefault(name, []).append(instruction)
    return users


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program: its computations by name, and which of them it starts with."""

  computations: dict[str, Computation]
  entry: str


def parse(text: str) -> Module:
  """Reads a module.

  Args:
    text: of `compiled.as_text()`.

  Raises:
    ValueError: the text is not that of an HLO module.
  """
  computations, entry, name, found = {}, None, None, []
  for line in text.splitlines():
    if not line.startswith(" "):
      header = _HEADER.match(line)
      if header:
        name, found = header[2], []
        entry = name if header[1] else entry
      elif line.startswith("}") and name is not None:
        computations[name], name = Computation(found), None
    elif name is not None:
      start = _INSTRUCTION.match(line)
      if start:
        found.append(_instruction(start[2], bool(start[1]), line[start.end() :]))
  if entry is None:
    raise ValueError(f"HLO: expected the text of a compiled module, found {text[:80]!r}.")
  return Module(computations, entry)


def _instruction(name: str, is_root: bool, text: str) -> Instruction:
  end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
  kind, rest = text[:end], text[end:].lstrip()
  start = rest.index("(")
  stop = _closing(rest, start)
  argument = rest[start + 1 : stop]
  operands = tuple(_OPERAND.findall(argument))
  return Instruction(name, rest[:start], parse_shapes(kind), operands, argument, rest[stop + 1 :], is_root)


def _closing(text: str, start: int) -> int:
  """The place of the parenthesis that closes the one at `start`."""
  depth = 0
  for place in re.finditer(r"[()]", text[start:]):
    depth += 1 if place[0] == "(" else -1
    if depth == 0:
      return start + place.start()
  raise ValueError(f"HLO: expected a closing parenthesis, found {text[:80]!r}.")


def _numbers(text: str) -> tuple[int, ...]:
  return tuple(int(number) for number in text.split(",") if number)
