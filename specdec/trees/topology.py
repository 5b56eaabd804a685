"""The shape of a draft: a token tree, of which a chain is the simplest.

Nodes are numbered so that a parent comes before its children. Node 0 of a
*block* is the root: the last committed token, which is scored together with
the draft.

Dimensions: N nodes.
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
  """Parents, depths and ancestors of N nodes.

  Attributes:
    parents: [N] int32, `NO_PARENT` for the first node.
    depth: [N] int32, 0 for the first node.
    mask: [N, N] bool, True where column j is an ancestor of row i or i itself.
    is_chain: static; True lets caches be written and committed without a gather.
  """

  parents: Array
  depth: Array
  mask: Array
  is_chain: bool = dataclasses.field(default=False, metadata={"static": True})

  @property
  def size(self) -> int:
    """N."""
    return self.parents.shape[0]


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


def chain(size: int) -> Topology:
  """The chain of `size` nodes: each the parent of the next.

  Raises:
    ValueError: `size` is below 1.
  """
  if size < 1:
    raise ValueError(f"chain: expected at least 1 node, found {size}.")
  return from_parents(np.arange(size) - 1)
