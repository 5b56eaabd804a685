"""Sequoia's tree: the best fixed shape for measured acceptance by child rank, and the best size for measured times.

`acceptance[k]` is the chance that the (k + 1)-th child of an accepted node is
the one accepted, wherever the node stands. The value of a tree is the expected
tokens of a step: the sum over its nodes, the root included, of the product of
the acceptances along their paths. NumPy in float64, outside of jit.

Source: Chen et al. 2024, "Sequoia: scalable, robust, and hardware-aware speculative decoding" (arXiv 2402.12374).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from specdec.trees import static
from specdec.trees import topology
from specdec.trees.growth import check_budget, Growth


class Shape(NamedTuple):
  """A fixed tree.

  Attributes:
    parents: of the block, by layers, siblings by rank.
    value: expected tokens of a step, the target's own included.
    depth: of its deepest node.
  """

  parents: list[int]
  value: float
  depth: int


def _as_acceptance(acceptance: ArrayLike) -> np.ndarray:
  found = np.asarray(acceptance, np.float64)
  if found.ndim != 1 or not len(found) or not ((found >= 0) & (found <= 1)).all():
    raise ValueError(f"acceptance: expected a probability for each child rank, found {np.asarray(acceptance).tolist()}.")
  if found.sum() > 1 + 1e-6:
    raise ValueError(f"acceptance: one child at most is accepted, so the sum is at most 1; found {found.sum():.6g}.")
  return found


def tree_value(parents: Sequence[int], acceptance: ArrayLike) -> float:
  """Expected tokens of a step with a fixed tree.

  Args:
    parents: of the block.
    acceptance: [K], by child rank; children beyond K are never accepted.

  Example:
    >>> tree_value([-1, 0, 0, 1], [0.5, 0.25])
    2.0
  """
  acceptance, ranks = _as_acceptance(acceptance), static.ranks(parents)
  reached = np.ones(len(parents))
  for node in range(1, len(parents)):
    rank = ranks[node]
    reached[node] = reached[parents[node]] * (acceptance[rank] if rank < len(acceptance) else 0.0)
  return float(reached.sum())


class _Table(NamedTuple):
  """Best values and choices for one depth; index n is the number of nodes."""

  best: np.ndarray  # [N + 2], of any number of children
  branches: np.ndarray  # [N + 2], that number
  last: np.ndarray  # [K + 1, N + 2], size of the last child's sub-tree when there are b


def _tables(acceptance: np.ndarray, nodes: int, max_depth: int) -> list[_Table]:
  """`T_d[n, b] = max_m T_d[n - m, b - 1] + P[b] max_b' T_{d - 1}[m, b']`, until more depth adds nothing."""
  empty = np.full(nodes + 1, -np.inf)
  alone = empty.copy()
  alone[1] = 1.0
  tables = [_Table(alone, np.zeros(nodes + 1, int), np.zeros((1, nodes + 1), int))]
  index = np.arange(nodes + 1)
  rest = index[:, None] - index[None, :]  # n - m
  for _ in range(max_depth):
    below = tables[-1].best
    values, last = [alone], [np.zeros(nodes + 1, int)]
    for chance in acceptance[: nodes - 1]:
      left = np.where((rest >= 1) & (index[None, :] >= 1), values[-1][np.maximum(rest, 0)], -np.inf)
      both = left + np.where(np.isfinite(below), chance * np.where(np.isfinite(below), below, 0.0), -np.inf)
      last.append(both.argmax(axis=1))
      values.append(both.max(axis=1))
    values = np.stack(values)
    table = _Table(values.max(axis=0), values.argmax(axis=0), np.stack(last))
    if len(tables) > 1 and np.array_equal(table.best, below):
      break
    tables.append(table)
  return tables


def best_shape(acceptance: ArrayLike, size: int, max_depth: int | None = None) -> Shape:
  """The fixed tree of `size` drafted nodes with the largest value, by dynamic programming.

  Args:
    acceptance: [K], by child rank. A node gets K children at most.
    size: N, drafted nodes.
    max_depth: of the tree; None is no limit.

  Raises:
    ValueError: acceptance is not one, a limit is below 1, or no tree of that
      depth with K children a node has so many nodes.

  Example:
    >>> best_shape([0.6, 0.2], 3).parents
    [-1, 0, 1, 2]
    >>> best_shape([0.6, 0.2], 3, max_depth=2).parents
    [-1, 0, 0, 1]

  Source: section 3.1; the depth cap as in its repository.
  """
  acceptance = _as_acceptance(acceptance)
  check_budget(size, max_depth=max_depth)
  tables = _tables(acceptance, size + 1, min(max_depth or size, size))
  if not np.isfinite(tables[-1].best[size + 1]):
    raise ValueError(
        f"size: no tree of depth {max_depth} with {len(acceptance)} children a node has {size} drafted nodes; "
        "give a smaller size, a larger max_depth, or acceptance of more ranks."
    )
  # Breadth first: (nodes of the sub-tree, depth left, number of the node).
  parents, queue = [topology.NO_PARENT], [(size + 1, len(tables) - 1, 0)]
  for nodes, depth, number in queue:
    table, sizes = tables[depth], []
    for branch in range(table.branches[nodes], 0, -1):
      sizes.append(int(table.last[branch][nodes]))
      nodes -= sizes[-1]
    for child in reversed(sizes):
      queue.append((child, depth - 1, len(parents)))
      parents.append(number)
  depth = int(np.asarray(topology.from_parents(parents).depth).max())
  return Shape(parents, float(tables[-1].best[size + 1]), depth)


def best_size(
    acceptance: ArrayLike,
    target_seconds: Mapping[int, float],
    draft_seconds: float,
    max_depth: int | None = None,
) -> tuple[Shape, float]:
  """The fixed tree with the most expected tokens a second on this machine.

  Args:
    acceptance: [K], by child rank.
    target_seconds: by number of drafted nodes, the measured time of the target
      to score them with the root; 0 is one token alone.
    draft_seconds: of one call of the draft; a tree of depth d takes d of them.
    max_depth: tried up to; None is the largest size.

  Returns:
    The shape that maximises `G(n, d) / (t(n) + d c)`, and its speed over plain
    decoding, if `target_seconds` knows 0, else its tokens a second.

  Raises:
    ValueError: there is no size, or a time is not positive.

  Example:
    >>> shape, speed = best_size([0.7, 0.2], {0: 1.0, 2: 1.1, 4: 1.2, 8: 3.0}, 0.1)
    >>> len(shape.parents) - 1, round(speed, 2)
    (4, 1.82)

  Source: section 3.3.
  """
  times = {int(n): float(t) for n, t in target_seconds.items()}
  sizes = sorted(n for n in times if n > 0)
  if not sizes or min(times.values()) <= 0 or draft_seconds <= 0:
    raise ValueError(f"target_seconds, draft_seconds: expected positive times for sizes, found {times}, {draft_seconds}.")
  best = None
  for size in sizes:
    for depth in range(1, min(size, max_depth or size) + 1):
      try:
        shape = best_shape(acceptance, size, depth)
      except ValueError:
        continue  # So flat a tree does not hold so many nodes.
      speed = shape.value / (times[size] + shape.depth * draft_seconds)
      if best is None or speed > best[1]:
        best = shape, speed
      if shape.depth < depth:
        break  # More depth adds nothing.
  if best is None:
    raise ValueError(f"target_seconds: no tree of depth {max_depth} has one of the sizes {sizes}.")
  return best[0], best[1] * times.get(0, 1.0)


def acceptance_by_rank(parents: Sequence[int], visited: ArrayLike, acceptance: ArrayLike) -> np.ndarray:
  """The acceptance by child rank that a run with a fixed tree measured.

  Args:
    parents: of the block.
    visited: [G] or [B, G], `Statistics.visited`.
    acceptance: the same, `Statistics.acceptance`.

  Returns:
    float64 [K], 0 for a rank that was never tried. Where the noise of the
    estimate takes the sum over 1 it is scaled back to 1.
  """
  ranks = static.ranks(parents)[1:]
  total = lambda x: np.bincount(ranks, weights=np.asarray(x, np.float64).reshape(-1, len(ranks)).sum(0))
  tries = total(visited)
  rates = np.where(tries > 0, total(acceptance) / np.maximum(tries, 1), 0.0)
  return rates / max(1.0, rates.sum())


def sequoia_growth(acceptance: ArrayLike, size: int, max_depth: int | None = None) -> Growth:
  """The construction of `best_shape`; children are drawn without replacement.

  Raises:
    ValueError: see `best_shape`.
  """
  return static.static_growth(best_shape(acceptance, size, max_depth).parents)
