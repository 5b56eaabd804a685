"""How long the compiler's final schedules are: instruction bundles of each operation.

A tensor core issues one bundle a cycle and never more, so that the bundles on
an operation's path bound its time from below. The compiler writes its
schedules as text when it is asked to before it starts.

What is counted and what is not: a loop counts as often as its exit test says, a
pipelined one without the runs that only fill and drain it; code under a
predicate counts as run; a loop without a number, as they stand in collectives,
counts once; waiting for memory and for other chips counts nothing.
"""

import collections
import functools
import os
import re
import tempfile

from specdec.sharding.hlo import Computation, Instruction, Module

_FLAGS = "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=^final_bundles$"
_VARIABLE = "LIBTPU_INIT_ARGS"
_SUFFIX = re.compile(r"^\d+-(.+)-\d+-final_bundles\.txt$")
_BUNDLE = re.compile(r"^\s*(?:0x)?[0-9a-f]+\s+(LB)?\s*:\s*((?:> ?)*)\{")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+) /\* loop exit test")
_BELOW = re.compile(r"scmp\.lt\.s32\.totalorder %\w+, (\d+)\b")


@functools.cache
def ask() -> str:
  """Asks the compiler for its schedules; returns the folder that it writes them to.

  Works only before the compiler is first used in a process. The folder is
  removed when the process ends.
  """
  folder = _temporary().name
  flags = os.environ.get(_VARIABLE, "")
  os.environ[_VARIABLE] = f"{flags} {_FLAGS.format(folder=folder)}".strip()
  return folder


def forget() -> None:
  """Removes what was written of programs compiled so far."""
  folder = ask()
  for name in os.listdir(folder):
    os.remove(os.path.join(folder, name))


def read(module: Module) -> dict[str, int] | None:
  """Bundles of each instruction of the program that was compiled last.

  Instructions that are the same in all but their operands' names share one
  schedule.

  Args:
    module: the program.

  Returns:
    By the instruction's name; None if the compiler wrote nothing.
  """
  folder, own = ask(), {}
  for name in sorted(os.listdir(folder)):
    found = _SUFFIX.match(name)
    if found:
      with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
        own[found[1]] = bundles(file.read())
  if not own:
    return None
  signatures, all_bundles = {}, {}
  instructions = [(c, i) for c in module.computations.values() for i in c.values()]
  for computation, instruction in instructions:
    if instruction.name in own:
      signatures.setdefault(_signature(module, computation, instruction), own[instruction.name])
  for computation, instruction in instructions:
    if instruction.name in own:
      all_bundles[instruction.name] = own[instruction.name]
    else:
      twin = signatures.get(_signature(module, computation, instruction))
      if twin is not None:
        all_bundles[instruction.name] = twin
  return all_bundles


def bundles(text: str) -> int:
  """Bundles that one run of a schedule issues.

  Args:
    text: of a file of final bundles.

  Example:
    >>> lines = ["0 : { a }", "0x1 LB: > { b }", "0x2 : > { %p = scmp.ge.s32.totalorder %s1, 5 /* loop exit test */ }"]
    >>> bundles(chr(10).join(lines + ["0x3 : { c }"]))
    12
  """
  stack = [_Loop()]
  for line in text.splitlines():
    start = _BUNDLE.match(line)
    if not start:
      continue
    depth = start[2].count(">")
    while len(stack) > depth + 1 or (start[1] and len(stack) == depth + 1 and depth):
      inner = stack.pop()
      stack[-1].bundles += inner.total
    while len(stack) < depth + 1:
      stack.append(_Loop())
    stack[-1].add(line)
  while len(stack) > 1:
    inner = stack.pop()
    stack[-1].bundles += inner.total
  return stack[0].bundles


class _Loop:
  """A loop's body as it is read."""

  def __init__(self):
    self.bundles = 0
    self.exit = None
    self.pipelined = False
    self.below = collections.Counter()

  def add(self, line: str) -> None:
    self.bundles += 1
    exit_ = _EXIT.search(line)
    if exit_:
      self.exit = int(exit_[1])
    self.pipelined |= "iteration index, stage" in line
    self.below.update(int(number) for number in _BELOW.findall(line))

  @property
  def total(self) -> int:
    runs = 1 if self.exit is None else self.exit
    if self.pipelined:  # Its last runs drain it: the number of real ones is compared with, too.
      runs = min((real for real in (runs - 2, runs - 1) if real > 0 and self.below[real]), default=runs)
    return self.bundles * runs


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory(prefix="schedules_")


def _signature(module: Module, computation: Computation, instruction: Instruction) -> tuple:
  """What two instructions must share to share a schedule."""
  operands = tuple(computation[name].shapes for name in instruction.operands)
  inside = ()
  called = instruction.attribute("calls") if instruction.opcode == "fusion" else None
  if called in module.computations:
    inside = tuple((i.opcode, i.shapes) for i in module.computations[called].values())
  return instruction.opcode, instruction.shapes, operands, inside
