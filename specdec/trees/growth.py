"""How a token tree grows: what every construction shares.

A drafter alternates two things: it scores nodes, `width` of them a call, which
gives every scored node its candidate children in the order of their drawing;
and it asks the construction to `grow` the tree with the candidates known so
far and to name the nodes to score next. Constructions are pure functions of
one row's `Tree`, whose buffers have a fixed size; `drafters.tree` runs them.

Drawing a node's children ahead of their use keeps the output exact as long as
`grow` decides whether child r of a node joins without reading that child: it
may read the values of children drawn before.

Dimensions: N drafted nodes (N + 1 with the root), K candidates a node, W nodes
scored a call, C calls, R = 1 + C W rows of the drafter's tables.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.trees.topology import NO_PARENT, Topology

Array = jax.Array

UNSCORED = -1
NO_TOKEN = -1
NO_NODE = -1
CLOSED = -1.0


class Tree(NamedTuple):
  """A tree being grown, of one row; node 0 is the root.

  Attributes:
    tokens: [N + 1] int32.
    parents: [N + 1] int32, `NO_PARENT` where there is no node yet.
    depth: [N + 1] int32.
    value: [N + 1] float32, the estimated probability that a walk tries the node,
      known before its token was drawn.
    size: [] int32, nodes so far, the root included.
    row: [N + 1] int32, where the drafter's tables hold the node: 0 the root,
      1 + its slot among the draft's pending tokens, or `UNSCORED`.
    next_value: [N + 1] float32, value of the next child of each node, `CLOSED`
      where there will be none.
    drawn: [N + 1] int32, children so far.
    candidates: [R, K] int32, children of each scored node in the order of their
      drawing, `NO_TOKEN` beyond the draft's support.
    chance: [R, K] float32, the probability that the draft gave each candidate
      when the earlier ones were taken out.
  """

  tokens: Array
  parents: Array
  depth: Array
  value: Array
  size: Array
  row: Array
  next_value: Array
  drawn: Array
  candidates: Array
  chance: Array


class Growth(NamedTuple):
  """A construction, bound to its sizes.

  Attributes:
    size: N, the drafted nodes at most.
    width: W, nodes scored a call.
    calls: C, calls of the draft at most, after the one that scores the root.
    children: K, candidates of a node.
    grow: `(tree, call [], scored [W]) -> tree, frontier [W]` for one row: `scored`
      are the nodes of the last call (the root before the first), `frontier`
      those of the next, `NO_NODE` where there are fewer.
    topology: of the block where it is the same for every row and step, or None.
    replacement: whether children are drawn with replacement.
    fills: whether a node takes more children than its law has tokens; the rest
      are then drawn from the other tokens alike.
  """

  size: int
  width: int
  calls: int
  children: int
  grow: Callable[[Tree, Array, Array], tuple[Tree, Array]]
  topology: Topology | None = None
  replacement: bool = False
  fills: bool = False

  @property
  def slots(self) -> int:
    """C W, pending tokens of the draft."""
    return self.calls * self.width


def check_budget(size: int, **limits: int | None) -> None:
  """The door of the dynamic constructions: raises a `ValueError` for a size or another limit below 1."""
  for name, value in {"size": size, **limits}.items():
    if value is not None and value < 1:
      raise ValueError(f"{name}: expected at least 1, found {value}.")


def seed(growth: Growth) -> Tree:
  """The tree of one row before the first call: the root alone, and empty tables."""
  nodes, rows = growth.size + 1, 1 + growth.slots
  root = jnp.arange(nodes) == 0
  zeros = jnp.zeros((nodes,), jnp.int32)
  return Tree(
      tokens=zeros,
      parents=jnp.full((nodes,), NO_PARENT, jnp.int32),
      depth=zeros,
      value=root.astype(jnp.float32),
      size=jnp.int32(1),
      row=jnp.where(root, 0, UNSCORED).astype(jnp.int32),
      next_value=jnp.where(root, 1.0, CLOSED).astype(jnp.float32),
      drawn=zeros,
      candidates=jnp.full((rows, growth.children), NO_TOKEN, jnp.int32),
      chance=jnp.zeros((rows, growth.children), jnp.float32),
  )


def mark_scored(tree: Tree, frontier: Array, call: Array) -> Tree:
  """Gives the nodes `frontier` [W] their rows in the tables: those of call `call`."""
  width = frontier.shape[0]
  hit = jnp.arange(tree.row.shape[0])[:, None] == frontier[None, :]  # [N + 1, W]
  place = 1 + call * width + jnp.argmax(hit, axis=1)
  return tree._replace(row=jnp.where(hit.any(axis=1), place, tree.row).astype(jnp.int32))
