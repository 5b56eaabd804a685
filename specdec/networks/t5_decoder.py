"""T5's decoder for decoding: few new tokens a call, over an explicit cache.

The weights of `networks.t5` are laid out once for it (`lay_out`): activations
are columns, one a token, q/k/v and the branches of the feed-forward layer are
one product each, and products take the form that is fast for their size (`layers.Kernel`).
On XLA's CPU backend that makes eight tokens cost little more than one.
Cross-attention keys and values are computed once a request (`start`).

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
from specdec.networks.layers import Kernel
from specdec.networks.t5 import T5Config

Array = jax.Array


class LayerWeights(NamedTuple):
  """One decoder layer, laid out for decoding."""

  self_norm: Array  # [E]
  self_qkv: Kernel  # 3 from E to H*D
  self_out: Kernel  # H*D to E
  cross_norm: Array  # [E]
  cross_query: Kernel  # E to H*D
  cross_kv: Array  # [E, 2, H*D]; used once a request, over S rows
  cross_out: Kernel  # H*D to E
  mlp_norm: Array  # [E]
  mlp_in: Kernel  # A branches from E to M
  mlp_out: Kernel  # M to E


class DecoderWeights(NamedTuple):
  """The decoder, laid out for decoding. A tied output is not stored twice."""

  embedding: Array  # [V, E]
  layers: tuple[LayerWeights, ...]
  relative_bias: Array  # [H, buckets]
  final_norm: Array  # [E]
  logits: Kernel | None  # E to V; None when tied to the embedding


class DecoderState(NamedTuple):
  """What the decoder keeps of a request."""

  cache: KVCache
  cross_keys: tuple[Array, ...]  # a layer [B, H, S, D]
  cross_values: tuple[Array, ...]  # a layer [B, H, S, D]
  cross_bias: Array  # [B, 1, 1, S]
  distance_bias: Array  # [H, L], relative bias by (query position - key position)


def lay_out(params: Mapping[str, Any], config: T5Config, out_first: bool | None = None) -> DecoderWeights:
  """Lays out the parameters of `networks.t5.T5` for decoding; the values are the same.

  Args:
    params: nested dict with T5X's names; `decoder` and `token_embedder` are read.
    config: of the model.
    out_first: layout of the kernels, see `layers.Kernel`; None takes the faster
      one: out first where the model is wide (from 512 on).
  """
  out_first = config.emb_dim >= 512 if out_first is None else out_first
  kernel = lambda *arrays: Kernel.lay_out(out_first, *arrays)
  decoder = params["decoder"]
  kernels = lambda tree, *names: [tree[name]["kernel"] for name in names]
  mlp_names = ["wi"] if len(config.mlp_activations) == 1 else [f"wi_{i}" for i in range(len(config.mlp_activations))]

  def one_layer(p):
    own, cross, mlp = p["self_attention"], p["encoder_decoder_attention"], p["mlp"]
    return LayerWeights(
        self_norm=p["pre_self_attention_layer_norm"]["scale"],
        self_qkv=kernel(*kernels(own, "query", "key", "value")),
        self_out=kernel(own["out"]["kernel"]),
        cross_norm=p["pre_cross_attention_layer_norm"]["scale"],
        cross_query=kernel(cross["query"]["kernel"]),
        cross_kv=jnp.stack(kernels(cross, "key", "value"), axis=1),
        cross_out=kernel(cross["out"]["kernel"]),
        mlp_norm=p["pre_mlp_layer_norm"]["scale"],
        mlp_in=kernel(*kernels(mlp, *mlp_names)),
        mlp_out=kernel(mlp["wo"]["kernel"]),
    )

  return DecoderWeights(
      embedding=params["token_embedder"]["embedding"],
      layers=tuple(one_layer(decoder[f"layers_{i}"]) for i in range(config.num_decoder_layers)),
      relative_bias=decoder["relpos_bias"]["rel_embedding"],
      final_norm=decoder["decoder_norm"]["scale"],
      logits=None if config.logits_via_embedding else kernel(decoder["logits_dense"]["kernel"]),
  )


def take_apart(weights: DecoderWeights, config: T5Config) -> dict[str, Any]:
  """The inverse of `lay_out`: the parameters 'decoder' and 'token_embedder' under T5X's names, bit for bit.

  Args:
    weights: from `lay_out`.
    config: of the model.
  """

  def kernels(kernel: Kernel | Array, *names):
    parts = kernel.take_apart() if isinstance(kernel, Kernel) else jnp.unstack(kernel, axis=1)
    return {name: {"kernel": part} for name, part in zip(names, parts, strict=True)}

  gated = len(config.mlp_activations) > 1
  mlp_names = [f"wi_{i}" for i in range(len(config.mlp_activations))] if gated else ["wi"]
  decoder = {
      f"layers_{i}": {
          "pre_self_attention_layer_norm": {"scale": layer.self_norm},
          "self_attention": kernels(layer.self_qkv, "query", "key", "value") | kernels(layer.self_out, "out"),
          "pre_cross_attention_layer_norm": {"scale": layer.cross_norm},
          "encoder_decoder_attention": {
              **kernels(layer.cross_query, "query"), **kernels(layer.cross_kv, "key", "value"),
              **kernels(layer.cross_out, "out"),
          },
          "pre_mlp_layer_norm": {"scale": layer.mlp_norm},
          "mlp": kernels(layer.mlp_in, *mlp_names) | kernels(layer.mlp_out, "wo"),
      }
      for i, layer in enumerate(weights.layers)
  }  # fmt: skip
  decoder["relpos_bias"] = {"rel_embedding": weights.relative_bias}
  decoder["decoder_norm"] = {"scale": weights.final_norm}
  if weights.logits is not None:
    decoder |= kernels(weights.logits, "logits_dense")
  return {"decoder": decoder, "token_embedder": {"embedding": weights.embedding}}


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
    kv = jnp.tensordot(encoded.astype(dtype), layer.cross_kv.astype(dtype), 1)
    kv = kv.reshape(batch, length, 2, config.num_heads, config.head_dim)
    cross_keys.append(kv[:, :, 0].transpose(0, 2, 1, 3))
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


def _self_bias(
    state: DecoderState, depth: Array, mask: Array | None, columns: Array | None
) -> tuple[Array, Array]:
  """Bias [B, H, N, L] of the new tokens over the slots, `MASKED` where they must not look; where they may [B, 1, N, L].

  Distances are differences of positions. A committed slot is its own position;
  a new token's position is `length + pending + depth`, or `length + depth`
  where `columns` tells the depths of the pending ones too.
  """
  cache = state.cache
  slots = jnp.arange(cache.buffer_length)
  first = (cache.length + cache.pending)[:, None]  # [B, 1]
  if mask is None:  # A chain: slot and position are the same, and order is ancestry.
    query = first + depth[None, :]  # [B, N]
    key = jnp.broadcast_to(slots[None, :], (first.shape[0], cache.buffer_length))
    seen = slots[None, None, :] <= query[:, :, None]
  else:
    if columns is not None:
      first = cache.length[:, None]  # The slot of column 0.
    rows = lambda x, rank: jnp.broadcast_to(x, (first.shape[0], *x.shape[x.ndim - rank :]))
    query = first + rows(depth, 1)
    columns, mask = rows(depth if columns is None else columns, 1), rows(mask, 2)
    node = slots[None, :] - first  # [B, L], the column of each slot
    inside = (node >= 0) & (node < columns.shape[1])
    clipped = jnp.clip(node, 0, columns.shape[1] - 1)
    key = jnp.where(inside, first + jnp.take_along_axis(columns, clipped, axis=1), slots[None, :])
    ancestor = jnp.take_along_axis(mask, clipped[:, None, :], axis=2)  # [B, N, L]
    seen = jnp.where(inside[:, None, :], ancestor, slots[None, None, :] < first[:, :, None])
  distance = jnp.clip(query[:, :, None] - key[:, None, :], 0, cache.buffer_length - 1)  # [B, N, L]
  bias = state.distance_bias[:, distance].transpose(1, 0, 2, 3)
  return jnp.where(seen[:, None], bias, layers.MASKED), seen[:, None]


def score(
    weights: DecoderWeights,
    config: T5Config,
    state: DecoderState,
    tokens: Array,
    depth: Array,
    mask: Array | None = None,
    columns: Array | None = None,
) -> tuple[Array, Array, DecoderState]:
  """Scores N new tokens a row in one call and appends them to the pending slots.

  Args:
    weights: from `lay_out`.
    config: of the model.
    state: of the request.
    tokens: [B, N] int32.
    depth: [N] or [B, N] int32, distance of each token from the first new position.
    mask: [N, N] or [B, N, N] bool, True where column j is an ancestor of row i
      or i itself; None for a chain (depth is then 0, 1, …).
    columns: None, or [W] or [B, W]: depths of the pending tokens and then the
      new ones, all measured from the first pending position; `mask` then has W
      columns (see `trees.topology.Topology`).

  Returns:
    Logits [B, N, V] in float32, final hidden states [B, N, E], the new state.
  """
  dtype = jnp.dtype(config.dtype)
  batch, number = tokens.shape
  split = lambda y: attention.split_columns(y, config.num_heads, batch)
  softmax_dtype = jnp.float32 if config.float32_attention_logits else None
  x = weights.embedding[tokens.reshape(-1)].astype(dtype).T  # [E, B*N]
  bias, seen = _self_bias(state, depth, mask, columns)
  first = state.cache.length + state.cache.pending
  keys, values = [], []
  for i, layer in enumerate(weights.layers):
    query, key, value = jnp.unstack(layer.self_qkv @ layers.rms_norm(x, layer.self_norm, axis=0))
    key, value = split(key), split(value)
    # 0 * NaN is NaN: a node that is not finite must spoil those that see it, by its key, and no others, by its value.
    finite = jnp.isfinite(value).all(axis=-1, keepdims=True)
    keys.append(cache_lib.write(state.cache.keys[i], jnp.where(finite, key, jnp.nan), first))
    values.append(cache_lib.write(state.cache.values[i], jnp.where(finite, value, 0), first))
    mixed = attention.attend(split(query), keys[i], values[i], bias, softmax_dtype, seen)
    x = x + layer.self_out @ attention.join_columns(mixed)
    query = layer.cross_query @ layers.rms_norm(x, layer.cross_norm, axis=0)
    mixed = attention.attend(split(query), state.cross_keys[i], state.cross_values[i], state.cross_bias, softmax_dtype)
    x = x + layer.cross_out @ attention.join_columns(mixed)
    branches = layer.mlp_in @ layers.rms_norm(x, layer.mlp_norm, axis=0)
    if len(config.mlp_activations) == 1:
      branches = branches[None]
    hidden = None
    for name, branch in zip(config.mlp_activations, branches):
      branch = layers.activation(name)(branch)
      hidden = branch if hidden is None else hidden * branch
    x = x + layer.mlp_out @ hidden
  x = layers.rms_norm(x, weights.final_norm, axis=0).astype(jnp.float32)
  if weights.logits is None:
    logits = weights.embedding.astype(jnp.float32) @ x / jnp.sqrt(jnp.float32(config.emb_dim))
  else:
    logits = weights.logits @ x
  rows = lambda y: y.reshape(-1, batch, number).transpose(1, 2, 0)
  cache = KVCache(tuple(keys), tuple(values), state.cache.length, state.cache.pending + number)
  return rows(logits), rows(x), state._replace(cache=cache)
