"""What one writes first: a cached greedy decoder over Flax's parameters in a `lax.while_loop`.

A yardstick for the plain decoder, not a part of it. It does what is natural
and does it well: `x @ kernel` with the kernels as Flax stores them, one
product each for query, key and value, keys and values of the encoder computed
once, one cache slot written a step, the whole loop jitted.
"""

from collections.abc import Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp

from specdec.networks import layers
from specdec.networks.t5 import T5, T5Config, mask_bias

Array = jax.Array


def _attend(config: T5Config, query: Array, keys: Array, values: Array, bias: Array) -> Array:
  """query [B, 1, H*D], keys and values [B, L, H, D], bias [B, H or 1, 1, L] -> [B, 1, H*D]."""
  query = query.reshape(*query.shape[:2], config.num_heads, config.head_dim)
  weights = jax.nn.softmax(jnp.einsum("bqhd,blhd->bhql", query, keys) + bias, axis=-1)
  return jnp.einsum("bhql,blhd->bqhd", weights, values).reshape(*query.shape[:2], -1)


@functools.partial(jax.jit, static_argnames=("module", "max_new_tokens", "eos_id"))
def greedy_decode(
    module: T5, params: Mapping[str, Any], tokens: Array, max_new_tokens: int, eos_id: int = 1
) -> tuple[Array, Array]:
  """Decodes tokens [B, S] greedily.

  Args:
    module: the Flax module.
    params: its parameters.
    tokens: encoder input, 0 is padding.
    max_new_tokens: L.
    eos_id: ends a row.

  Returns:
    Tokens [B, L], and how many of each row were made [B].
  """
  config, decoder = module.config, params["decoder"]
  batch, length = tokens.shape[0], max_new_tokens
  heads = lambda x: x.reshape(*x.shape[:2], config.num_heads, config.head_dim)
  encoded = module.apply({"params": params}, tokens, method=module.encode)
  blocks = [decoder[f"layers_{i}"] for i in range(config.num_decoder_layers)]
  cross = [
      [heads(encoded @ p["encoder_decoder_attention"][name]["kernel"]) for name in ("key", "value")] for p in blocks
  ]
  cross_bias = mask_bias(tokens > 0, encoded.dtype)[:, None, None, :]
  slots = jnp.arange(length)

  def one_token(token, position, caches):
    bucket = layers.relative_position_bucket(
        slots - position, False, config.relative_attention_num_buckets, config.relative_attention_max_distance
    )
    bias = decoder["relpos_bias"]["rel_embedding"][None, :, None, bucket]
    bias = bias + mask_bias(slots <= position, jnp.float32)[None, None, None]
    x = params["token_embedder"]["embedding"][token][:, None]
    written = []
    for p, (keys, values), (cross_keys, cross_values) in zip(blocks, caches, cross):
      y = layers.rms_norm(x, p["pre_self_attention_layer_norm"]["scale"])
      own = p["self_attention"]
      put = lambda cache, name: jax.lax.dynamic_update_slice_in_dim(cache, heads(y @ own[name]["kernel"]), position, 1)
      keys, values = put(keys, "key"), put(values, "value")
      written.append((keys, values))
      x = x + _attend(config, y @ own["query"]["kernel"], keys, values, bias) @ own["out"]["kernel"]
      y = layers.rms_norm(x, p["pre_cross_attention_layer_norm"]["scale"])
      other = p["encoder_decoder_attention"]
      mixed = _attend(config, y @ other["query"]["kernel"], cross_keys, cross_values, cross_bias)
      x = x + mixed @ other["out"]["kernel"]
      y = layers.rms_norm(x, p["pre_mlp_layer_norm"]["scale"])
      names = ["wi"] if len(config.mlp_activations) == 1 else [f"wi_{i}" for i in range(len(config.mlp_activations))]
      hidden = 1.0
      for name, act in zip(names, config.mlp_activations):
        hidden = hidden * layers.activation(act)(y @ p["mlp"][name]["kernel"])
      x = x + hidden @ p["mlp"]["wo"]["kernel"]
    x = layers.rms_norm(x, decoder["decoder_norm"]["scale"])
    if config.logits_via_embedding:
      logits = x @ params["token_embedder"]["embedding"].T / jnp.sqrt(jnp.float32(config.emb_dim))
    else:
      logits = x @ decoder["logits_dense"]["kernel"]
    return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), written

  def body(carry):
    position, token, output, ended, caches = carry
    token, caches = one_token(token, position, caches)
    token = jnp.where(ended, 0, token)
    output = jax.lax.dynamic_update_slice_in_dim(output, token[:, None], position, 1)
    return position + 1, token, output, ended | (token == eos_id), caches

  empty = jnp.zeros((batch, length, config.num_heads, config.head_dim), encoded.dtype)
  start = (
      jnp.int32(0),
      jnp.zeros((batch,), jnp.int32),
      jnp.zeros((batch, length), jnp.int32),
      jnp.zeros((batch,), bool),
      [(empty, empty) for _ in blocks],
  )
  _, _, output, _, _ = jax.lax.while_loop(lambda c: (c[0] < length) & ~c[3].all(), body, start)
  is_eos = output == eos_id
  return output, jnp.where(is_eos.any(1), is_eos.argmax(1) + 1, length)
