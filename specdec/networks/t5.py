"""T5 1.0 and 1.1 as a Flax module, with T5X's parameter names and shapes.

This is the form that trains and that checkpoints are named after. Decoding
with a cache lays the same weights out once more for speed: see
`networks.t5_decoder`.

Differences from `t5x.examples.t5.network` that change no value: token ids are
looked up (T5X multiplies by a one-hot), and there is no decode mode here.
`adapters.t5x_module` gives this network the calls that T5X makes.

Dimensions: B batch, S encoder length, L decoder length, V vocabulary,
E embedding, H heads, D head size, M mlp.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from specdec.networks import layers

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Sizes and choices of a T5, under the names of T5X's `T5Config`.

  Attributes:
    vocab_size: V, rows of the embedding and columns of the output.
    emb_dim: E.
    num_heads: H.
    head_dim: D; H * D need not be E.
    num_encoder_layers: layers of the encoder.
    num_decoder_layers: layers of the decoder.
    mlp_dim: M.
    mlp_activations: ('relu',) is T5 1.0, ('gelu', 'linear') is T5 1.1.
    logits_via_embedding: True ties the output to the embedding (T5 1.0).
    dropout_rate: used only when dropout is enabled.
    dtype: of the activations; parameters are cast to it where they are used.
    relative_attention_num_buckets: rows of the relative position table.
    relative_attention_max_distance: distances from here on share a bucket.
    float32_attention_logits: softmax of attention in float32 under bfloat16.
  """

  vocab_size: int
  emb_dim: int = 512
  num_heads: int = 8
  head_dim: int = 64
  num_encoder_layers: int = 6
  num_decoder_layers: int = 6
  mlp_dim: int = 2048
  mlp_activations: tuple[str, ...] = ("gelu", "linear")
  logits_via_embedding: bool = False
  dropout_rate: float = 0.1
  dtype: Any = "float32"
  relative_attention_num_buckets: int = 32
  relative_attention_max_distance: int = 128
  float32_attention_logits: bool = False

  def __post_init__(self):
    object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
    for name in ("vocab_size", "emb_dim", "num_heads", "head_dim", "num_decoder_layers", "mlp_dim"):
      if getattr(self, name) < 1:
        raise ValueError(f"T5Config.{name}: expected at least 1, found {getattr(self, name)}.")
    if self.relative_attention_num_buckets < 4:  # The encoder's two halves need a near and a far bucket each.
      found = self.relative_attention_num_buckets
      raise ValueError(f"T5Config.relative_attention_num_buckets: expected at least 4, found {found}.")
    if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
      raise ValueError(
          "T5Config.relative_attention_max_distance: expected more than half of the buckets "
          f"({self.relative_attention_num_buckets // 2}), found {self.relative_attention_max_distance}."
      )
    try:
      is_float = jnp.issubdtype(jnp.dtype(self.dtype), jnp.floating)
    except TypeError:
      is_float = False
    if not is_float:
      raise ValueError(f"T5Config.dtype: expected a floating-point type such as 'bfloat16', found {self.dtype!r}.")
    if not self.mlp_activations:
      raise ValueError("T5Config.mlp_activations: expected at least one activation, found none.")
    for name in self.mlp_activations:
      layers.activation(name)
    if not 0 <= self.dropout_rate < 1:
      raise ValueError(f"T5Config.dropout_rate: expected 0 <= rate < 1, found {self.dropout_rate}.")


def _kernel_init(scale: float = 1.0):
  return nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")


class RMSNorm(nn.Module):
  """Root-mean-square norm with a scale."""

  @nn.compact
  def __call__(self, x: Array) -> Array:
    return layers.rms_norm(x, self.param("scale", nn.initializers.ones, (x.shape[-1],)))


class Dense(nn.Module):
  """A product without bias: `x @ kernel`, kernel [in, out]."""

  features: int
  init_scale: float = 1.0

  @nn.compact
  def __call__(self, x: Array) -> Array:
    kernel = self.param("kernel", _kernel_init(self.init_scale), (x.shape[-1], self.features))
    return x @ kernel.astype(x.dtype)


class Dropout(nn.Module):
  """Dropout whose mask is shared along the length, as T5X's."""

  rate: float

  @nn.compact
  def __call__(self, x: Array, enable: bool) -> Array:
    return nn.Dropout(self.rate, broadcast_dims=(-2,))(x, deterministic=not enable)


class Attention(nn.Module):
  """Multi-head attention without division by sqrt(D): the initialiser of `query` carries it."""

  config: T5Config

  @nn.compact
  def __call__(self, x: Array, memory: Array, bias: Array, enable_dropout: bool) -> Array:
    """x [B, L, E] attends to memory [B, S, E] under bias [B or 1, H or 1, L, S]."""
    config = self.config
    joined = config.num_heads * config.head_dim
    heads = lambda y: y.reshape(*y.shape[:-1], config.num_heads, config.head_dim)
    query = heads(Dense(joined, 1.0 / config.head_dim, name="query")(x))
    key = heads(Dense(joined, name="key")(memory))
    value = heads(Dense(joined, name="value")(memory))
    if config.float32_attention_logits:
      query, key = query.astype(jnp.float32), key.astype(jnp.float32)
    logits = jnp.einsum("blhd,bshd->bhls", query, key)
    logits = jnp.maximum(logits + bias.astype(logits.dtype), jnp.finfo(logits.dtype).min)  # `MASKED` is -inf in float16.
    weights = jax.nn.softmax(logits, axis=-1).astype(x.dtype)
    weights = Dropout(config.dropout_rate)(weights, enable_dropout)
    mixed = jnp.einsum("bhls,bshd->blhd", weights, value)
    return Dense(config.emb_dim, name="out")(mixed.reshape(*mixed.shape[:2], joined))


class Mlp(nn.Module):
  """The feed-forward layer: the product of its activations, then `wo`."""

  config: T5Config

  @nn.compact
  def __call__(self, x: Array, enable_dropout: bool) -> Array:
    config = self.config
    hidden = None
    for i, name in enumerate(config.mlp_activations):
      branch = Dense(config.mlp_dim, name="wi" if len(config.mlp_activations) == 1 else f"wi_{i}")(x)
      branch = layers.activation(name)(branch)
      hidden = branch if hidden is None else hidden * branch
    hidden = Dropout(config.dropout_rate)(hidden, enable_dropout)
    return Dense(config.emb_dim, name="wo")(hidden)


class RelativePositionBias(nn.Module):
  """One table a stack, shared by its layers."""

  config: T5Config
  bidirectional: bool

  @nn.compact
  def __call__(self, length: int) -> Array:
    """Returns the bias [1, H, length, length]."""
    config = self.config
    shape = (config.num_heads, config.relative_attention_num_buckets)
    init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
    table = self.param("rel_embedding", init, shape)
    positions = jnp.arange(length)
    bucket = layers.relative_position_bucket(
        positions[None, :] - positions[:, None],
        self.bidirectional,
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
    )
    return table.astype(config.dtype)[None, :, bucket]


def mask_bias(mask: Array, dtype: Any) -> Array:
  """0 where True, `layers.MASKED` where False."""
  return jnp.where(mask, 0.0, layers.MASKED).astype(dtype)


def attention_bias(mask: Array, dtype: Any) -> Array:
  """`mask_bias` over heads: a mask of keys [B, S], or of keys by query [B, L, S], gives [B, 1, 1 or L, S]."""
  return mask_bias(mask, dtype)[(slice(None), None) if mask.ndim == 3 else (slice(None), None, None)]


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward, each after a norm and around a residual."""

  config: T5Config

  @nn.compact
  def __call__(self, x: Array, bias: Array, enable_dropout: bool) -> Array:
    drop = Dropout(self.config.dropout_rate)
    y = RMSNorm(name="pre_attention_layer_norm")(x)
    x = x + drop(Attention(self.config, name="attention")(y, y, bias, enable_dropout), enable_dropout)
    y = RMSNorm(name="pre_mlp_layer_norm")(x)
    return x + drop(Mlp(self.config, name="mlp")(y, enable_dropout), enable_dropout)


class DecoderLayer(nn.Module):
  """Causal self-attention, cross-attention and feed-forward."""

  config: T5Config

  @nn.compact
  def __call__(self, x: Array, encoded: Array, bias: Array, cross_bias: Array, enable_dropout: bool) -> Array:
    drop = Dropout(self.config.dropout_rate)
    y = RMSNorm(name="pre_self_attention_layer_norm")(x)
    x = x + drop(Attention(self.config, name="self_attention")(y, y, bias, enable_dropout), enable_dropout)
    y = RMSNorm(name="pre_cross_attention_layer_norm")(x)
    cross = Attention(self.config, name="encoder_decoder_attention")
    x = x + drop(cross(y, encoded, cross_bias, enable_dropout), enable_dropout)
    y = RMSNorm(name="pre_mlp_layer_norm")(x)
    return x + drop(Mlp(self.config, name="mlp")(y, enable_dropout), enable_dropout)


class Encoder(nn.Module):
  """Stack of `EncoderLayer`s over embedded tokens."""

  config: T5Config

  @nn.compact
  def __call__(self, x: Array, mask: Array, enable_dropout: bool) -> Array:
    """x [B, S, E], mask [B, S] or [B, S, S] -> [B, S, E]."""
    bias = RelativePositionBias(self.config, True, name="relpos_bias")(x.shape[1])
    bias = bias + attention_bias(mask, x.dtype)
    drop = Dropout(self.config.dropout_rate)
    x = drop(x, enable_dropout)
    for i in range(self.config.num_encoder_layers):
      x = EncoderLayer(self.config, name=f"layers_{i}")(x, bias, enable_dropout)
    return drop(RMSNorm(name="encoder_norm")(x), enable_dropout)


class Decoder(nn.Module):
  """Stack of `DecoderLayer`s and the output layer."""

  config: T5Config

  @nn.compact
  def __call__(
      self,
      x: Array,
      embedding: Array,
      encoded: Array,
      encoder_mask: Array,
      enable_dropout: bool,
      decoder_mask: Array | None = None,
  ) -> Array:
    """x [B, L, E], encoded [B, S, E] -> logits [B, L, V] in float32."""
    config = self.config
    length = x.shape[1]
    causal = jnp.tril(jnp.ones((1, length, length), bool))
    bias = RelativePositionBias(config, False, name="relpos_bias")(length)
    bias = bias + attention_bias(causal if decoder_mask is None else causal & decoder_mask, x.dtype)
    cross_bias = attention_bias(encoder_mask, x.dtype)
    drop = Dropout(config.dropout_rate)
    x = drop(x, enable_dropout)
    for i in range(config.num_decoder_layers):
      x = DecoderLayer(config, name=f"layers_{i}")(x, encoded, bias, cross_bias, enable_dropout)
    x = drop(RMSNorm(name="decoder_norm")(x), enable_dropout).astype(jnp.float32)
    if config.logits_via_embedding:
      return x @ embedding.astype(jnp.float32).T / jnp.sqrt(jnp.float32(config.emb_dim))
    return Dense(config.vocab_size, name="logits_dense")(x)


class TokenEmbedder(nn.Module):
  """The table shared by encoder and decoder."""

  config: T5Config

  def setup(self):
    self.embedding = self.param("embedding", nn.initializers.normal(1.0), (self.config.vocab_size, self.config.emb_dim))

  def __call__(self, tokens: Array) -> Array:
    return self.embedding[tokens].astype(self.config.dtype)


class T5(nn.Module):
  """An encoder-decoder T5; `__call__` is teacher forced.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> config = T5Config(vocab_size=16, emb_dim=8, num_heads=2, head_dim=4, num_encoder_layers=1,
    ...                   num_decoder_layers=1, mlp_dim=16)
    >>> tokens = jnp.ones((1, 3), jnp.int32)
    >>> variables = T5(config).init(jax.random.key(0), tokens, tokens)
    >>> T5(config).apply(variables, tokens, tokens).shape
    (1, 3, 16)
  """

  config: T5Config

  def setup(self):
    self.token_embedder = TokenEmbedder(self.config)
    self.encoder = Encoder(self.config)
    self.decoder = Decoder(self.config)

  def encode(self, encoder_input_tokens: Array, encoder_mask: Array | None = None, enable_dropout: bool = False) -> Array:
    """Encodes tokens [B, S]; positions where `encoder_mask` [B, S] is False (default: id 0) are not seen.

    A mask [B, S, S] says which keys each position sees: several examples in one row.
    """
    if encoder_mask is None:
      encoder_mask = encoder_input_tokens > 0
    return self.encoder(self.token_embedder(encoder_input_tokens), encoder_mask, enable_dropout)

  def decode(
      self,
      encoded: Array,
      encoder_mask: Array,
      decoder_input_tokens: Array,
      enable_dropout: bool = False,
      decoder_mask: Array | None = None,
  ) -> Array:
    """Scores `decoder_input_tokens` [B, L] (shifted right, first is BOS): logits [B, L, V].

    Args:
      encoded: [B, S, E].
      encoder_mask: [B, S] bool, or [B, L, S].
      decoder_input_tokens: [B, L] int32.
      enable_dropout: for training.
      decoder_mask: [B, L, L] bool, which tokens may see which, besides order;
        None is all.
    """
    x = self.token_embedder(decoder_input_tokens)
    return self.decoder(x, self.token_embedder.embedding, encoded, encoder_mask, enable_dropout, decoder_mask)

  def __call__(
      self,
      encoder_input_tokens: Array,
      decoder_input_tokens: Array,
      encoder_mask: Array | None = None,
      enable_dropout: bool = False,
  ) -> Array:
    """encoder tokens [B, S], decoder tokens [B, L] -> logits [B, L, V]."""
    if encoder_mask is None:
      encoder_mask = encoder_input_tokens > 0
    encoded = self.encode(encoder_input_tokens, encoder_mask, enable_dropout)
    return self.decode(encoded, encoder_mask, decoder_input_tokens, enable_dropout)
