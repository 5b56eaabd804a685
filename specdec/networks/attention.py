"""Attention of a few new tokens over a cache, with activations kept as columns.

Dimensions: B batch, H heads, D head size, L slots, N new tokens.
"""

import jax
import jax.numpy as jnp

from specdec.networks.layers import MASKED

Array = jax.Array


def split_columns(y: Array, num_heads: int, batch: int) -> Array:
  """Columns [H*D, B*N] -> [B, H, N, D]."""
  joined, columns = y.shape
  y = y.reshape(num_heads, joined // num_heads, batch, columns // batch)
  return y.transpose(2, 0, 3, 1)


def join_columns(y: Array) -> Array:
  """[B, H, N, D] -> columns [H*D, B*N], the inverse of `split_columns`."""
  batch, heads, new, size = y.shape
  return y.transpose(1, 3, 0, 2).reshape(heads * size, batch * new)


def attend(
    query: Array, keys: Array, values: Array, bias: Array, softmax_dtype=None, seen: Array | None = None
) -> Array:
  """Softmax attention without division by sqrt(D), as T5's.

  `softmax(query @ keys^T + bias) @ values`, where a slot whose bias is `MASKED`
  for every query may hold anything, NaN included.

  Args:
    query: [B, H, N, D].
    keys: [B, H, L, D].
    values: [B, H, L, D].
    bias: [B or 1, H or 1, N or 1, L], `MASKED` where a query must not look.
    softmax_dtype: of the logits and their softmax; None is the dtype of `query`.
    seen: [B or 1, 1, N or 1, L] bool, where `bias` is not `MASKED`; None reads
      it from `bias`, which costs a sum over chips where they share the heads.

  Returns:
    [B, H, N, D].
  """
  seen = bias > 0.5 * MASKED if seen is None else seen
  logits = jnp.einsum("bhnd,bhld->bhnl", query, keys, preferred_element_type=softmax_dtype)
  # Of float16 -1e10 is -inf, and a row of nothing but -inf has no softmax.
  lowest = max(MASKED, float(jnp.finfo(logits.dtype).min))
  logits = jnp.where(seen, logits + bias.astype(logits.dtype), lowest)
  weights = jax.nn.softmax(logits, axis=-1).astype(values.dtype)
  used = jnp.any(seen, axis=(1, 2))[:, None, :, None]  # [B or 1, 1, L, 1]
  return jnp.einsum("bhnl,bhld->bhnd", weights, jnp.where(used, values, 0))
