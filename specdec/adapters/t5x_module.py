"""Our T5 with the calls that T5X makes of a network: `module` of a plain `t5x.models.EncoderDecoderModel`.

It trains (packed rows too), scores, decodes with T5X's own loops (beam search,
sampling, prompts token by token or prefilled) and names the logical axes of its
parameters for T5X's partitioner. Parameters are those of `networks.t5`; nothing
of T5X is imported here.

Dimensions: B batch, S encoder length, L decoder length, V vocabulary,
E embedding, H heads, D head size.
"""

from collections.abc import Mapping
from typing import Any

from flax.linen import partitioning
import jax
import jax.numpy as jnp

from specdec.networks import cache as cache_lib
from specdec.networks import t5_decoder
from specdec.networks.cache import KVCache
from specdec.networks.t5 import T5

Array = jax.Array

# By the last names of a parameter; T5X's own, so that its partitioning and Adafactor rules fit.
LOGICAL_AXES = {
    "embedding": ("vocab", "embed"),
    "rel_embedding": ("heads", "relpos_buckets"),
    "scale": ("embed",),
    "query/kernel": ("embed", "joined_kv"),
    "key/kernel": ("embed", "joined_kv"),
    "value/kernel": ("embed", "joined_kv"),
    "out/kernel": ("joined_kv", "embed"),
    "wi/kernel": ("embed", "mlp"),
    "wi_0/kernel": ("embed", "mlp"),
    "wi_1/kernel": ("embed", "mlp"),
    "wo/kernel": ("mlp", "embed"),
    "logits_dense/kernel": ("embed", "vocab"),
}


def logical_axes(params: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
  """The collection 'params_axes' of `params`, as flax's `param_with_axes` would have written it.

  Args:
    params: nested dictionaries with the names of `networks.t5`.
    parent: the key that `params` lies under.

  Example:
    >>> logical_axes({"wo": {"kernel": jnp.ones((2, 2))}})
    {'wo': {'kernel_axes': AxisMetadata(names=('mlp', 'embed'))}}
  """
  axes = {}
  for name, value in params.items():
    if isinstance(value, Mapping):
      axes[name] = logical_axes(value, name)
    else:
      known = LOGICAL_AXES[name if name in LOGICAL_AXES else f"{parent}/{name}"]
      axes[f"{name}_axes"] = partitioning.AxisMetadata(known)
  return axes


def _same(queries: Array, keys: Array) -> Array:
  """[B, L], [B, S] -> [B, L, S], True where they are equal."""
  return queries[:, :, None] == keys[:, None, :]


class T5XModule(T5):
  """`networks.t5.T5` under T5X's signatures; same configuration, same parameters.

  Example:
    >>> from specdec.networks.t5 import T5Config
    >>> module = T5XModule(T5Config(vocab_size=16, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=16,
    ...                             num_encoder_layers=1, num_decoder_layers=1))
    >>> tokens = jnp.ones((1, 3), jnp.int32)
    >>> variables = module.init(jax.random.key(0), tokens, tokens, tokens, enable_dropout=False)
    >>> sorted(variables)
    ['params', 'params_axes']
    >>> module.apply({"params": variables["params"]}, tokens, tokens, tokens, enable_dropout=False).shape
    (1, 3, 16)

  Source: the calls of `t5x/models.py` and the network `t5x/examples/t5`, T5X at cc342d4.
  """

  def encode(
      self, encoder_input_tokens: Array, encoder_segment_ids: Array | None = None, enable_dropout: bool = True
  ) -> Array:
    """Encodes tokens [B, S]; with segment ids [B, S] a token sees its own segment."""
    tokens = encoder_input_tokens.astype(jnp.int32)  # T5X initialises with floats.
    mask = tokens > 0
    if encoder_segment_ids is not None:
      mask = mask[:, None, :] & _same(encoder_segment_ids, encoder_segment_ids)
    return super().encode(tokens, mask, enable_dropout)

  def decode(
      self,
      encoded: Array,
      encoder_input_tokens: Array,
      decoder_input_tokens: Array,
      decoder_target_tokens: Array,
      encoder_segment_ids: Array | None = None,
      decoder_segment_ids: Array | None = None,
      decoder_positions: Array | None = None,
      enable_dropout: bool = True,
      decode: bool = False,
      max_decode_length: int | None = None,
      prefill: bool = False,
      prefill_lengths: Array | None = None,
  ) -> Array:
    """Scores decoder tokens: teacher forced, or one a row after those in the cache.

    With `decode` the first call, which finds no collection 'cache', makes one of
    L slots; later calls take tokens [B, 1]. With `prefill` a call writes all L
    tokens and keeps the first `prefill_lengths` [B] of each row.

    Args:
      encoded: [B, S, E].
      encoder_input_tokens: [B, S], for its padding.
      decoder_input_tokens: [B, L] or [B, 1].
      decoder_target_tokens: not read; padded targets carry no weight.
      encoder_segment_ids: [B, S], of packed rows.
      decoder_segment_ids: [B, L], of packed rows.
      decoder_positions: not read; relative positions are the same in packed rows.
      enable_dropout: for training.
      decode: use the cache.
      max_decode_length: not read; the cache knows its length.
      prefill: fill the cache with a prompt.
      prefill_lengths: [B].

    Returns:
      Logits [B, L, V].

    Raises:
      ValueError: packed rows with `decode`, or several tokens a row without `prefill`.
    """
    del decoder_target_tokens, decoder_positions, max_decode_length
    tokens = decoder_input_tokens.astype(jnp.int32)
    mask = encoder_input_tokens > 0
    if decode or prefill:
      if encoder_segment_ids is not None or decoder_segment_ids is not None:
        raise ValueError("decode: expected rows of one example, found segment ids; decode without packing.")
      if self.has_variable("cache", "decoder"):
        return self._decode_cached(encoded, mask, tokens, prefill_lengths if prefill else None)
      self._open_cache(*tokens.shape)
    own = None
    if decoder_segment_ids is not None:
      own = _same(decoder_segment_ids, decoder_segment_ids)
      if encoder_segment_ids is not None:
        mask = mask[:, None, :] & _same(decoder_segment_ids, encoder_segment_ids)
    return super().decode(encoded, mask, tokens, enable_dropout, own)

  def __call__(
      self,
      encoder_input_tokens: Array,
      decoder_input_tokens: Array,
      decoder_target_tokens: Array,
      encoder_segment_ids: Array | None = None,
      decoder_segment_ids: Array | None = None,
      encoder_positions: Array | None = None,
      decoder_positions: Array | None = None,
      *,
      enable_dropout: bool = True,
      decode: bool = False,
  ) -> Array:
    """Encoder tokens [B, S], decoder tokens [B, L] -> logits [B, L, V]; positions are not read."""
    del encoder_positions
    encoded = self.encode(encoder_input_tokens, encoder_segment_ids, enable_dropout)
    logits = self.decode(
        encoded,
        encoder_input_tokens,
        decoder_input_tokens,
        decoder_target_tokens,
        encoder_segment_ids,
        decoder_segment_ids,
        decoder_positions,
        enable_dropout,
        decode,
    )
    if self.is_initializing() and self.is_mutable_collection("params_axes"):
      for name, axes in logical_axes(self.variables["params"]).items():
        self.put_variable("params_axes", name, axes)
    return logits

  # T5X's loops expand and gather every leaf of the cache by its first axis, but for those called `cache_index`.

  def _open_cache(self, batch: int, length: int) -> None:
    config = self.config
    empty = cache_lib.empty(
        config.num_decoder_layers, batch, config.num_heads, config.head_dim, length, jnp.dtype(config.dtype)
    )
    self._put_cache(empty, jnp.int32(0))

  def _put_cache(self, cache: KVCache, index: Array) -> None:
    layers = {
        f"layers_{i}": {"self_attention": {"cached_key": keys, "cached_value": values}}
        for i, (keys, values) in enumerate(zip(cache.keys, cache.values))
    }
    self.put_variable("cache", "decoder", {**layers, "cache_index": index})

  def _decode_cached(self, encoded: Array, mask: Array, tokens: Array, prefill_lengths: Array | None) -> Array:
    """Scores tokens after those in the cache by `networks.t5_decoder`, in its layout of the weights.

    Inside a jitted loop nothing of the layout or of the cross-attention keys and
    values depends on the step, so that XLA computes them once.
    """
    config = self.config
    weights = t5_decoder.lay_out(self.variables["params"], config)
    stored = self.get_variable("cache", "decoder")
    own = [stored[f"layers_{i}"]["self_attention"] for i in range(config.num_decoder_layers)]
    keys, values = (tuple(layer[name] for layer in own) for name in ("cached_key", "cached_value"))
    batch, width = tokens.shape
    length = keys[0].shape[2]
    expected = length if prefill_lengths is not None else 1
    if width != expected:
      raise ValueError(f"decode: expected {expected} tokens a row, found {width}.")
    index = stored["cache_index"]  # [], [B] after a prefill, or [requests, beams] in T5X's beam search after one
    rows = jnp.broadcast_to(index.reshape(-1) if index.ndim else index, (batch,))
    cache = KVCache(keys, values, rows, jnp.int32(0))
    state = t5_decoder.start(weights, config, encoded, mask, length)._replace(cache=cache)
    logits, _, state = t5_decoder.score(weights, config, state, tokens, jnp.arange(width))
    self._put_cache(state.cache, index + 1 if prefill_lengths is None else prefill_lengths)
    return logits
