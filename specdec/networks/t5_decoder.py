"""T5's decoder for decoding: few new tokens a call, over an explicit cache.

The weights of `networks.t5` are laid out once for it (`lay_out`): products are
written `W[out, in] @ y[in, columns]` with one column a token, q/k/v and the
branches of the feed-forward layer are fused. On XLA's CPU backend that makes
eight tokens cost little more than one. Cross-attention keys and values are
computed once a request (`start`).

Dimensions: B batch, S encoder length, L buffer length, N new tokens,
V vocabulary, E embedding, H heads, D head size, M mlp.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.networks import attention
from specdec.networks import cache as cache_lib
from specdec.networks import layers
from specdec.networks.cache import KVCache
from specdec.networks.t5 import T5Config

Array = jax.Array


class LayerWeights(NamedTuple):
  """One decoder layer, laid out for decoding."""

  self_norm: Array  # [E]
  self_qkv: Array  # [3*H*D, E]
  self_out: Array  # [E, H*D]
  cross_norm: Array  # [E]
  cross_query: Array  # [H*D, E]
  cross_kv: Array  # [E, 2*H*D]; used once a request, over S rows
  cross_out: Array  # [E, H*D]
  mlp_norm: Array  # [E]
  mlp_in: Array  # [A*M, E], A branches
  mlp_out: Array  # [E, M]


class DecoderWeights(NamedTuple):
  """The decoder, laid out for decoding. A tied output is not stored twice."""

  embedding: Array  # [V, E]
  layers: tuple[LayerWeights, ...]
  relative_bias: Array  # [H, buckets]
  final_norm: Array  # [E]
  logits: Array | None  # [V, E]; None when tied to the embedding


class DecoderState(NamedTuple):
  """What the decoder keeps of a request."""

  cache: KVCache
  cross_keys: tuple[Array, ...]  # a layer [B, H, D, S]
  cross_values: tuple[Array, ...]  # a layer [B, H, S, D]
  cross_bias: Array  # [B, 1, 1, S]
  distance_bias: Array  # [H, L], relative bias by (query position - key position)


def lay_out(params: Mapping[str, Any], config: T5Config) -> DecoderWeights:
  """Lays out the parameters of `networks.t5.T5` for decoding; the values are the same.

  Args:
    params: nested dict with T5X's names; `decoder` and `token_embedder` are read.
    config: of the model.
  """
  decoder = params["decoder"]
  kernels = lambda tree, *names: jnp.concatenate([tree[name]["kernel"] for name in names], axis=1)
  mlp_names = ["wi"] if len(config.mlp_activations) == 1 else [f"wi_{i}" for i in range(len(config.mlp_activations))]

  def one_layer(p):
    own, cross, mlp = p["self_attention"], p["encoder_decoder_attention"], p["mlp"]
    return LayerWeights(
        self_norm=p["pre_self_attention_layer_norm"]["scale"],
        self_qkv=kernels(own, "query", "key", "value").T,
        self_out=own["out"]["kernel"].T,
        cross_norm=p["pre_cross_attention_layer_norm"]["scale"],
        cross_query=cross["query"]["kernel"].T,
        cross_kv=kernels(cross, "key", "value"),
        cross_out=cross["out"]["kernel"].T,
        mlp_norm=p["pre_mlp_layer_norm"]["scale"],
        mlp_in=kernels(mlp, *mlp_names).T,
        mlp_out=mlp["wo"]["kernel"].T,
    )

  return DecoderWeights(
      embedding=params["token_embedder"]["embedding"],
      layers=tuple(one_layer(decoder[f"layers_{i}"]) for i in range(config.num_decoder_layers)),
      relative_bias=decoder["relpos_bias"]["rel_embedding"],
      final_norm=decoder["decoder_norm"]["scale"],
      logits=None if config.logits_via_embedding else decoder["logits_dense"]["kernel"].T,
  )


def start(weights: DecoderWeights, config: T5Config, encoded: Array, encoder_mask: Array, buffer_length: int) -> DecoderState:
  """Opens a request: cross-attention keys and values, and an empty cache.

  Args:
    weights: from `lay_out`.
    config: of the model.
    encoded: [B, S, E], the encoder's output.
    encoder_mask: [B, S], True where there is a token.
    buffer_length: L, slots of the cache.
  """
  dtype = jnp.dtype(config.dtype)
  batch, length, _ = encoded.shape
  cross_keys, cross_values = [], []
  for layer in weights.layers:
    kv = encoded.astype(dtype) @ layer.cross_kv.astype(dtype)
    kv = kv.reshape(batch, length, 2, config.num_heads, config.head_dim)
    cross_keys.append(kv[:, :, 0].transpose(0, 2, 3, 1))
    cross_values.append(kv[:, :, 1].transpose(0, 2, 1, 3))
  bucket = layers.relative_position_bucket(
      -jnp.arange(buffer_length),
      False,
      config.relative_attention_num_buckets,
      config.relative_attention_max_distance,
  )
  return DecoderState(
      cache=cache_lib.empty(
          len(weights.layers), batch, config.num_heads, config.head_dim, buffer_length, dtype
      ),
      cross_keys=tuple(cross_keys),
      cross_values=tuple(cross_values),
      cross_bias=jnp.where(encoder_mask, 0.0, layers.MASKED).astype(dtype)[:, None, None, :],
      distance_bias=weights.relative_bias.astype(dtype)[:, bucket],
  )


def _self_bias(state: DecoderState, depth: Array, mask: Array | None) -> Array:
  """Bias [B, H, N, L] of the new tokens over the slots, `MASKED` where they must not look.

  Distances are differences of positions. A committed slot is its own position;
  a new token's position is `length + pending + depth`.
  """
  cache = state.cache
  slots = jnp.arange(cache.buffer_length)
  first = (cache.length + cache.pending)[:, None]  # [B, 1]
  query = first + depth[None, :]  # [B, N]
  node = slots[None, :] - first  # [B, L], index among the new tokens
  if mask is None:  # A chain: slot and position are the same, and order is ancestry.
    key = jnp.broadcast_to(slots[None, :], node.shape)
    seen = slots[None, None, :] <= query[:, :, None]
  else:
    number = depth.shape[0]
    inside = (node >= 0) & (node < number)
    clipped = jnp.clip(node, 0, number - 1)
    key = jnp.where(inside, first + depth[clipped], slots[None, :])
    ancestor = mask[:, clipped].transpose(1, 0, 2)  # [B, N, L]
    seen = jnp.where(inside[:, None, :], ancestor, slots[None, None, :] < first[:, :, None])
  distance = jnp.clip(query[:, :, None] - key[:, None, :], 0, cache.buffer_length - 1)  # [B, N, L]
  bias = state.distance_bias[:, distance].transpose(1, 0, 2, 3)
  return jnp.where(seen[:, None], bias, layers.MASKED)


def score(
    weights: DecoderWeights,
    config: T5Config,
    state: DecoderState,
    tokens: Array,
    depth: Array,
    mask: Array | None = None,
) -> tuple[Array, Array, DecoderState]:
  """Scores N new tokens a row in one call and appends them to the pending slots.

  Args:
    weights: from `lay_out`.
    config: of the model.
    state: of the request.
    tokens: [B, N] int32.
    depth: [N] int32, distance of each token from the first new position.
    mask: [N, N] bool, True where column j is an ancestor of row i or i itself;
      None for a chain (depth is then 0, 1, …).

  Returns:
    Logits [B, N, V] in float32, final hidden states [B, N, E], the new state.
  """
  dtype = jnp.dtype(config.dtype)
  batch, number = tokens.shape
  columns = lambda w, y: w.astype(y.dtype) @ y
  split = lambda y: attention.split_columns(y, config.num_heads, batch)
  softmax_dtype = jnp.float32 if config.float32_attention_logits else None
  x = weights.embedding[tokens.reshape(-1)].astype(dtype).T  # [E, B*N]
  bias = _self_bias(state, depth, mask)
  first = state.cache.length + state.cache.pending
  keys, values = [], []
  for i, layer in enumerate(weights.layers):
    query, key, value = jnp.split(columns(layer.self_qkv, layers.rms_norm(x, layer.self_norm, axis=0)), 3)
    keys.append(cache_lib.write(state.cache.keys[i], split(key).swapaxes(2, 3), first, axis=2))
    values.append(cache_lib.write(state.cache.values[i], split(value), first, axis=1))
    mixed = attention.attend(split(query), keys[i], values[i], bias, softmax_dtype)
    x = x + columns(layer.self_out, attention.join_columns(mixed))
    query = columns(layer.cross_query, layers.rms_norm(x, layer.cross_norm, axis=0))
    mixed = attention.attend(split(query), state.cross_keys[i], state.cross_values[i], state.cross_bias, softmax_dtype)
    x = x + columns(layer.cross_out, attention.join_columns(mixed))
    branches = jnp.split(columns(layer.mlp_in, layers.rms_norm(x, layer.mlp_norm, axis=0)), len(config.mlp_activations))
    hidden = None
    for name, branch in zip(config.mlp_activations, branches):
      branch = layers.activation(name)(branch)
      hidden = branch if hidden is None else hidden * branch
    x = x + columns(layer.mlp_out, hidden)
  x = layers.rms_norm(x, weights.final_norm, axis=0).astype(jnp.float32)
  if weights.logits is None:
    logits = columns(weights.embedding, x) / jnp.sqrt(jnp.float32(config.emb_dim))
  else:
    logits = columns(weights.logits, x)
  rows = lambda y: y.reshape(-1, batch, number).transpose(1, 2, 0)
  cache = KVCache(tuple(keys), tuple(values), state.cache.length, state.cache.pending + number)
  return rows(logits), rows(x), state._replace(cache=cache)
