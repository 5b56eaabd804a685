"""The key/value cache of a decoder: an explicit pytree, written by overwriting.

Slots `[0, length)` of a row are committed; the `pending` slots after them hold
tokens that were scored and are not committed yet. Everything beyond is never
read into a result, whatever it holds, so that rolling back is a change of
`length`.

Dimensions: B batch, H heads, D head size, L buffer length, N new tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class KVCache(NamedTuple):
  """Keys and values of every layer.

  Attributes:
    keys: one [B, H, D, L] array a layer.
    values: one [B, H, L, D] array a layer.
    length: [B] int32, committed slots of each row.
    pending: [] int32, slots scored after them, the same for all rows.
  """

  keys: tuple[Array, ...]
  values: tuple[Array, ...]
  length: Array
  pending: Array

  @property
  def buffer_length(self) -> int:
    """L."""
    return self.keys[0].shape[-1]


def empty(num_layers: int, batch: int, num_heads: int, head_dim: int, buffer_length: int, dtype) -> KVCache:
  """A cache with nothing in it."""
  keys = tuple(jnp.zeros((batch, num_heads, head_dim, buffer_length), dtype) for _ in range(num_layers))
  values = tuple(jnp.zeros((batch, num_heads, buffer_length, head_dim), dtype) for _ in range(num_layers))
  return KVCache(keys, values, jnp.zeros((batch,), jnp.int32), jnp.int32(0))


def write(buffer: Array, new: Array, start: Array, axis: int) -> Array:
  """Overwrites `new` into `buffer` along `axis`, row b from slot `start[b]` on.

  Args:
    buffer: [B, ...], with L slots along `axis`.
    new: the same shape with N slots along `axis`.
    start: [B] int32; start + N <= L, or the block is shifted down to fit.
    axis: counted without the batch axis.
  """
  if buffer.shape[0] == 1:  # One contiguous copy; the batched form is a scatter.
    return jax.lax.dynamic_update_slice_in_dim(buffer, new.astype(buffer.dtype), start[0], axis + 1)
  one = lambda b, n, s: jax.lax.dynamic_update_slice_in_dim(b, n.astype(b.dtype), s, axis)
  return jax.vmap(one)(buffer, new, start)


def commit(cache: KVCache, count: Array) -> KVCache:
  """Keeps the first `count` [B] pending slots and forgets the others: O(1)."""
  return cache._replace(length=cache.length + count, pending=jnp.zeros_like(cache.pending))


def commit_path(cache: KVCache, path: Array, count: Array) -> KVCache:
  """Keeps the pending slots `path` [B, P] in that order, `count` [B] of them.

  The kept slots are moved together, so that the next step starts from a cache
  equal to one built from scratch.
  """
  source = cache.length[:, None] + path  # [B, P]
  keep = lambda buffer, axis: write(
      buffer, jax.vmap(lambda b, s: jnp.take(b, s, axis=axis, mode="clip"))(buffer, source), cache.length, axis
  )
  keys = tuple(keep(k, 2) for k in cache.keys)
  values = tuple(keep(v, 1) for v in cache.values)
  return commit(cache._replace(keys=keys, values=values), count)
