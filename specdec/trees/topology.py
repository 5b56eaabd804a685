"""The shape of a draft: a token tree, of which a chain is the simplest.

Nodes are numbered so that a parent comes before its children, and the children
of a node in the order in which they were drawn. Node 0 of a *block* is the
root: the last committed token, which is scored together with the draft.

A tree is either the same for every row (arrays without a batch axis, built by
`from_parents`) or each row has its own, made inside jit (`from_parent_arrays`).

Dimensions: B batch, N nodes, W columns of a mask.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

NO_PARENT = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Topology:
  """Parents, depths and ancestors of N nodes, with or without a leading axis of rows.

  Attributes:
    parents: [N] or [B, N] int32, `NO_PARENT` for the first node; in a tree made
      inside jit also for numbers that no node of that row has.
    depth: [N] or [B, N] int32, 0 for the first node.
    mask: [N, N] or [B, N, N] bool, True where column j is an ancestor of row i
      or i itself.
    is_chain: static; True lets caches be written and committed without a gather.
    columns: None, or [W] or [B, W] int32. A model may score a tree in several
      calls. The nodes of one call are then the rows of a mask [N, W], whose
      columns are all the pending nodes and then the new ones, each in its slot;
      `columns` is the depth of each column, `parents` counts columns, and depths
      are measured from the first uncommitted position.
  """

  parents: Array
  depth: Array
  mask: Array
  is_chain: bool = dataclasses.field(default=False, metadata={"static": True})
  columns: Array | None = None

  @property
  def size(self) -> int:
    """N."""
    return self.parents.shape[-1]

  def per_row(self, batch: int) -> "Topology":
    """The same with a leading axis of `batch` rows on every array."""
    rows = lambda x, rank: jnp.broadcast_to(x, (batch, *x.shape[x.ndim - rank :]))
    columns = None if self.columns is None else rows(self.columns, 1)
    return Topology(rows(self.parents, 1), rows(self.depth, 1), rows(self.mask, 2), self.is_chain, columns)


def from_parents(parents: Sequence[int]) -> Topology:
  """Builds the topology of a static tree.

  Args:
    parents: for each node the index of its parent, `NO_PARENT` for node 0.

  Raises:
    ValueError: node 0 has a parent, or a node does not come after its parent.

  Example:
    >>> from_parents([-1, 0, 0, 1]).depth.tolist()
    [0, 1, 1, 2]
  """
  parents = np.asarray(parents, np.int32)
  if parents.ndim != 1 or len(parents) == 0 or parents[0] != NO_PARENT:
    raise ValueError(f"parents: expected [{NO_PARENT}, …] for a root and its tree, found {parents.tolist()}.")
  size = len(parents)
  depth = np.zeros(size, np.int32)
  mask = np.eye(size, dtype=bool)
  for node in range(1, size):
    parent = parents[node]
    if not 0 <= parent < node:
      raise ValueError(f"parents: expected the parent of node {node} in [0, {node}), found {parent}.")
    depth[node] = depth[parent] + 1
    mask[node] |= mask[parent]
  is_chain = bool(np.all(parents == np.arange(size) - 1))
  return Topology(jnp.asarray(parents), jnp.asarray(depth), jnp.asarray(mask), is_chain)


def from_parent_arrays(parents: Array) -> Topology:
  """Builds the topologies of trees that are known only inside jit, one a row.

  Ancestors come by pointer doubling: log2(N) gathers of the mask.

  Args:
    parents: [..., N] int32, `NO_PARENT` for node 0 and for numbers without a
      node; a parent comes before its children.

  Returns:
    A `Topology` of the same leading axes. A number without a node has depth 0
    and sees itself.

  Example:
    >>> from_parent_arrays(jnp.array([[-1, 0, 1, 1, -1]])).depth.tolist()
    [[0, 1, 2, 2, 0]]
  """
  size = parents.shape[-1]
  above = jnp.where(parents < 0, size, parents)  # A row beyond the last, without ancestors, stands above every root.
  above = jnp.pad(above, [(0, 0)] * (parents.ndim - 1) + [(0, 1)], constant_values=size)
  mask = jnp.broadcast_to(jnp.eye(size + 1, size, dtype=bool), (*above.shape, size))
  for _ in range(max(size - 1, 0).bit_length()):
    mask = mask | jnp.take_along_axis(mask, above[..., None], axis=-2)
    above = jnp.take_along_axis(above, above, axis=-1)
  mask = mask[..., :size, :]
  return Topology(parents, mask.sum(-1, dtype=jnp.int32) - 1, mask)


def chain(size: int) -> Topology:
  """The chain of `size` nodes: each the parent of the next.

  Raises:
    ValueError: `size` is below 1.
  """
  if size < 1:
    raise ValueError(f"chain: expected at least 1 node, found {size}.")
  return from_parents(np.arange(size) - 1)
