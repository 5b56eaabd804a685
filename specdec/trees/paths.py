"""Walks over trees inside jit: the path to a node, and the next child to try.

Dimensions: B batch, N nodes of a block, G = N - 1 drafted ones.
"""

import jax
import jax.numpy as jnp

from specdec.trees.topology import NO_PARENT, Topology

Array = jax.Array


def to_node(topology: Topology, node: Array) -> tuple[Array, Array]:
  """The path from the root to a node, as indices to gather by.

  Args:
    topology: of N nodes.
    node: [B] int32.

  Returns:
    path [B, G] int32, the nodes at depths 1, 2, … down to `node`, then 0; and
    their number [B] int32.

  Example:
    >>> from specdec.trees import topology
    >>> path, count = to_node(topology.from_parents([-1, 0, 0, 2]), jnp.array([3, 1, 0]))
    >>> path.tolist(), count.tolist()
    ([[2, 3, 0], [1, 0, 0], [0, 0, 0]], [2, 1, 0])
  """
  tree = topology.per_row(node.shape[0])
  line = jnp.take_along_axis(tree.mask, node[:, None, None], axis=1)[:, 0]  # [B, N], ancestors and itself
  places = 1 + jnp.arange(tree.size - 1)
  stands = line[:, None, :] & (tree.depth[:, None, :] == places[None, :, None])  # [B, G, N]
  path = jnp.where(stands, jnp.arange(tree.size, dtype=jnp.int32), 0).sum(-1)
  return path, jnp.take_along_axis(tree.depth, node[:, None], axis=1)[:, 0]


def next_child(parents: Array, node: Array, after: Array) -> Array:
  """The first child of `node` [B] numbered above `after` [B]; N where there is none.

  Args:
    parents: [B, N] int32.
    node: [B] int32.
    after: [B] int32, the sibling tried last, or `node` itself.
  """
  numbers = jnp.arange(parents.shape[1])
  fits = (parents == node[:, None]) & (numbers > after[:, None])
  return jnp.where(fits, numbers, parents.shape[1]).min(axis=1).astype(jnp.int32)


def deepest(topology: Topology, good: Array) -> Array:
  """The deepest node whose whole path is good, the first of equals; 0, the root, where no child is.

  Args:
    topology: of N nodes.
    good: [B, G] bool, of the drafted nodes.

  Returns:
    [B] int32.
  """
  tree = topology.per_row(good.shape[0])
  good = jnp.pad(good & (tree.parents[:, 1:] != NO_PARENT), ((0, 0), (1, 0)), constant_values=True)
  whole = jnp.all(good[:, None, :] | ~tree.mask, axis=-1)
  return jnp.argmax(jnp.where(whole, tree.depth, -1), axis=1).astype(jnp.int32)
