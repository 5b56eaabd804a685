"""Trees whose shape is known when the step is built: k-ary ones, given lists of paths, and any given parents."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specdec.trees import topology
from specdec.trees.growth import CLOSED, Growth, NO_NODE, Tree

Array = jax.Array


def k_ary(branches: int, depth: int) -> list[int]:
  """Parents of the complete tree in which every node above `depth` has `branches` children.

  Raises:
    ValueError: an argument is below 1.

  Example:
    >>> k_ary(2, 2)
    [-1, 0, 0, 1, 1, 2, 2]
  """
  if branches < 1 or depth < 1:
    raise ValueError(f"k_ary: expected branches and depth of at least 1, found {branches} and {depth}.")
  return by_layers([branches] * depth)


def by_layers(expansion: Sequence[int]) -> list[int]:
  """Parents of the tree in which every node at depth i has `expansion[i]` children; see `trees.specinfer`.

  Raises:
    ValueError: it is empty, or an entry is below 1.
  """
  if not len(expansion) or min(expansion) < 1:
    raise ValueError(f"expansion: expected children a node by depth, each at least 1, found {list(expansion)}.")
  parents, layer = [topology.NO_PARENT], [0]
  for children in expansion:
    above = [node for node in layer for _ in range(children)]
    layer = list(range(len(parents), len(parents) + len(above)))
    parents += above
  return parents


def from_paths(paths: Sequence[Sequence[int]]) -> list[int]:
  """Parents of the tree that holds the given paths, each a list of child ranks from the root down, as Medusa writes them.

  Args:
    paths: of the nodes, in any order; a node's prefixes and earlier siblings
      must be among them. Ranks count from 0.

  Returns:
    Parents in order of depth, siblings by rank.

  Raises:
    ValueError: a path is empty or double, or a prefix or an earlier sibling is missing.

  Example:
    >>> from_paths([[0], [1], [0, 0]])
    [-1, 0, 0, 1]
  """
  nodes = sorted((tuple(int(rank) for rank in path) for path in paths), key=lambda path: (len(path), path))
  number = {(): 0}
  parents = [topology.NO_PARENT]
  for path in nodes:
    if not path or path in number:
      raise ValueError(f"paths: expected each node once and no empty path, found {list(path)} again or empty.")
    needed = path[:-1] if path[-1] == 0 else (*path[:-1], path[-1] - 1)
    if needed not in number:
      raise ValueError(f"paths: {list(path)} needs {list(needed)}, its parent or earlier sibling; add it.")
    number[path] = len(parents)
    parents.append(number[path[:-1]])
  return parents


def ranks(parents: Sequence[int]) -> np.ndarray:
  """[N + 1] int32, the place of each node among its siblings; 0 for the root.

  Example:
    >>> ranks([-1, 0, 0, 1]).tolist()
    [0, 0, 1, 0]
  """
  parents = list(parents)
  return np.asarray([parents[:node].count(parent) for node, parent in enumerate(parents)], np.int32)


def static_growth(parents: Sequence[int], replacement: bool = False) -> Growth:
  """The construction of a fixed shape: a call of the draft scores the inner nodes of one layer.

  Args:
    parents: for each node of the block the index of its parent, by layers, the
      siblings in the order of their drawing.
    replacement: whether siblings are drawn with replacement.

  Raises:
    ValueError: there is no drafted node, or nodes are not ordered by depth.
  """
  shape = topology.from_parents(parents)
  depth, rank, above = np.asarray(shape.depth), ranks(parents), np.asarray(parents)
  if len(depth) < 2 or (np.diff(depth) < 0).any():
    raise ValueError(f"parents: expected a root and at least one node, ordered by depth, found {list(parents)}.")
  inner = [[n for n in np.unique(above[1:]) if depth[n] == d] for d in range(1, depth.max())]
  width = max((len(layer) for layer in inner), default=1)
  schedule = np.full((len(inner) + 1, width), NO_NODE, np.int32)  # After the last call nothing is left.
  for call, layer in enumerate(inner):
    schedule[call, : len(layer)] = layer

  def grow(tree: Tree, call: Array, scored: Array) -> tuple[Tree, Array]:
    del scored
    row = tree.row[jnp.maximum(above, 0)]
    known = (row >= 0) & (above >= 0)
    place = jnp.maximum(row, 0), rank
    tokens = jnp.where(known, tree.candidates[place], 0)
    tree = tree._replace(
        tokens=tokens.astype(jnp.int32),
        parents=jnp.asarray(above),
        depth=shape.depth,
        size=jnp.int32(len(above)),
        next_value=jnp.full_like(tree.next_value, CLOSED),
    )
    return tree, jnp.asarray(schedule)[call]

  children = int(rank.max()) + 1
  return Growth(len(above) - 1, width, len(inner), children, grow, shape, replacement, fills=True)
