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
    keys: one [B, H, L, D] array a layer.
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
    return self.keys[0].shape[2]


def empty(num_layers: int, batch: int, num_heads: int, head_dim: int, buffer_length: int, dtype) -> KVCache:
  """A cache with nothing in it."""
  zeros = lambda: tuple(jnp.zeros((batch, num_heads, buffer_length, head_dim), dtype) for _ in range(num_layers))
  return KVCache(zeros(), zeros(), jnp.zeros((batch,), jnp.int32), jnp.int32(0))


def write(buffer: Array, new: Array, start: Array) -> Array:
  """Overwrites `new` into `buffer`, row b from slot `start[b]` on.

  Args:
    buffer: [B, H, L, D].
    new: [B, H, N, D].
    start: [B] int32; start + N <= L, or the block is shifted down to fit.
  """
  new = new.astype(buffer.dtype)
  if buffer.shape[0] == 1:  # One contiguous copy; the batched form is a scatter.
    return jax.lax.dynamic_update_slice_in_dim(buffer, new, start[0], 2)
  return jax.vmap(lambda b, n, s: jax.lax.dynamic_update_slice_in_dim(b, n, s, 1))(buffer, new, start)


def commit(cache: KVCache, count: Array) -> KVCache:
  """Keeps the first `count` [B] pending slots and forgets the others: O(1)."""
  return cache._replace(length=cache.length + count, pending=jnp.zeros_like(cache.pending))


def commit_path(cache: KVCache, path: Array, count: Array) -> KVCache:
  """Keeps the pending slots `path` [B, P] in that order, `count` [B] of them.

  The kept slots are moved together, so that the next step starts from a cache
  equal to one built from scratch.
  """
  source = cache.length[:, None] + path  # [B, P]
  take = jax.vmap(lambda buffer, index: jnp.take(buffer, index, axis=1, mode="clip"))
  keep = lambda buffers: tuple(write(buffer, take(buffer, source), cache.length) for buffer in buffers)
  return commit(cache._replace(keys=keep(cache.keys), values=keep(cache.values)), count)
