"""From logits to the law that tokens are drawn from: one place for draft, target and baseline.

The order and the edges are T5X's: repetition penalty, bans and minimum
length act on the logits; then temperature, top-k, top-p, normalisation.
Every setting is an array with one value a row, so that changing it compiles
nothing again; a setting that is None is not compiled in at all.

Dimensions: B batch, N positions, V vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.probability.sampling import argmax

Array = jax.Array

GREEDY_TEMPERATURE = 1e-4  # T5X's MIN_TEMPERATURE: at or below it, decoding is argmax.


class Sampling(NamedTuple):
  """How the tokens of each request are drawn.

  Attributes:
    temperature: [B] float32; at most 1e-4 is argmax.
    top_k: [B] int32; keep the k most likely (and ties with the last); 0 is off.
    top_p: [B] float32; keep the smallest set of at least this mass (and ties
      with its last member); 0 is off.
    lenience: [B] float32 in (0, 1]; below 1 acceptance is lossy (Leviathan et
      al. 2023, A.5). Only acceptance rules read it.
    min_length: [B] int32 or None; EOS is impossible before that many new tokens.
    repetition_penalty: [B] float32 or None; logits of tokens of the prefix are
      divided by it when positive and multiplied when negative (Keskar et al.
      2019, CTRL).
    banned: [B, V] bool or None; True is never emitted.
  """

  temperature: Array
  top_k: Array
  top_p: Array
  lenience: Array
  min_length: Array | None = None
  repetition_penalty: Array | None = None
  banned: Array | None = None


class Prefix(NamedTuple):
  """What the prefix of each position has to say to the transforms.

  Attributes:
    new_tokens: [B, N] int32, new tokens before the position.
    seen: [B, N, V] bool, tokens of the decoder prefix; None when no row has a
      repetition penalty.
  """

  new_tokens: Array
  seen: Array | None = None


def sampling(
    batch: int,
    temperature=0.0,
    top_k=0,
    top_p=0.0,
    lenience=1.0,
    min_length=None,
    repetition_penalty=None,
    banned=None,
) -> Sampling:
  """Checks settings and gives each row its own.

  Args:
    batch: B.
    temperature: number or [B]; 0 is argmax.
    top_k: number or [B]; 0 is off.
    top_p: number or [B] in [0, 1]; 0 is off.
    lenience: number or [B] in (0, 1]; 1 is exact.
    min_length: None, number or [B].
    repetition_penalty: None, number or [B], above 0.
    banned: None, or [V] or [B, V] bool.

  Raises:
    ValueError: a value out of its range, or of another batch.

  Example:
    >>> sampling(2, temperature=[0., 1.], top_p=0.9).top_k.tolist()
    [0, 0]
  """

  def rows(name, value, dtype, low, high, low_open=False):
    if value is None:
      return None
    shape = np.shape(value)
    if len(shape) > 1 or (len(shape) == 1 and shape[0] != batch):
      raise ValueError(f"{name}: expected one number or {batch} of them, found shape {shape}.")
    if dtype == jnp.int32 and not isinstance(value, jax.core.Tracer):  # The cast would cut 0.9 to 0, which is "off".
      given = np.asarray(value, np.float64)
      if not np.all((given == np.floor(given)) & (given <= high)):
        raise ValueError(f"{name}: expected integers in [{low}, {high}], found {given.tolist()}.")
    if dtype == jnp.float32 and not isinstance(value, jax.core.Tracer):  # Devices flush these to 0, which may be "off".
      given, smallest = np.asarray(value, np.float64), float(np.finfo(np.float32).tiny)
      value = np.where((given > 0) & (given < smallest), smallest, given)
    value = jnp.asarray(value, dtype)
    if not isinstance(value, jax.core.Tracer):
      bad = (value <= low if low_open else value < low) | (value > high) | ~jnp.isfinite(value)
      if bool(jnp.any(bad)):
        bracket = "(" if low_open else "["
        raise ValueError(f"{name}: expected finite values in {bracket}{low}, {high}], found {value.tolist()}.")
    return jnp.broadcast_to(value, (batch,))

  infinity = float("inf")
  if banned is not None:
    banned = jnp.asarray(banned, bool)
    banned = jnp.broadcast_to(banned, (batch, banned.shape[-1]))
  return Sampling(
      temperature=rows("temperature", temperature, jnp.float32, 0.0, infinity),
      top_k=rows("top_k", top_k, jnp.int32, 0, 2**31 - 1),
      top_p=rows("top_p", top_p, jnp.float32, 0.0, 1.0),
      lenience=rows("lenience", lenience, jnp.float32, 0.0, 1.0, low_open=True),
      min_length=rows("min_length", min_length, jnp.int32, 0, 2**31 - 1),
      repetition_penalty=rows("repetition_penalty", repetition_penalty, jnp.float32, 0.0, infinity, low_open=True),
      banned=banned,
  )


def seen_tokens(tokens: Array, length: Array, vocab_size: int) -> Array:
  """Which tokens stand in the first `length` [B] places of `tokens` [B, L]: bool [B, V]."""
  inside = jnp.arange(tokens.shape[1])[None, :] < length[:, None]
  index = jnp.where(inside, tokens, vocab_size)  # Out of range is dropped.
  mark = lambda i: jnp.zeros((vocab_size,), bool).at[i].set(True, mode="drop")
  return jax.vmap(mark)(index)


def process(logits: Array, settings: Sampling, prefix: Prefix, eos_id: int) -> Array:
  """Applies what depends on the prefix: repetition penalty, bans, minimum length.

  Args:
    logits: [B, N, V], any float dtype.
    settings: of each row.
    prefix: of each position.
    eos_id: the token that `min_length` holds back.

  Returns:
    Logits [B, N, V] in float32, -inf where impossible.
  """
  logits = logits.astype(jnp.float32)
  if settings.repetition_penalty is not None:
    penalty = settings.repetition_penalty[:, None, None]
    penalised = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where(prefix.seen, penalised, logits)
  if settings.banned is not None:
    if settings.banned.shape[-1] != logits.shape[-1]:
      raise ValueError(f"banned: expected {logits.shape[-1]} flags, one a logit, found {settings.banned.shape[-1]}.")
    logits = jnp.where(settings.banned[:, None, :], -jnp.inf, logits)
  if settings.min_length is not None:
    early = prefix.new_tokens < settings.min_length[:, None]
    is_eos = (jnp.arange(logits.shape[-1]) == eos_id)[None, None, :]
    logits = jnp.where(early[:, :, None] & is_eos, -jnp.inf, logits)
  return logits


def _ordered_bits(x: Array) -> Array:
  """Maps float32 to uint32 so that order is kept and -0 equals 0."""
  bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)
  return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _keep_most_likely(logits: Array, enough) -> Array:
  """Masks all below the largest threshold t for which `enough({x : logit >= t})` holds.

  Bisects the bits of the threshold, so that 32 reductions replace a sort and
  ties are kept together. Where no threshold is enough, everything is kept.
  """
  order = _ordered_bits(logits)

  def refine(i, threshold):
    candidate = threshold | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
    return jnp.where(enough(order >= candidate[..., None]), candidate, threshold)

  threshold = jax.lax.fori_loop(0, 32, refine, jnp.zeros(logits.shape[:-1], jnp.uint32))
  return jnp.where(order >= threshold[..., None], logits, -jnp.inf)


def top_k_mask(logits: Array, k: Array) -> Array:
  """Keeps the k largest of the last axis and every tie with the k-th; k < 1 keeps all.

  Args:
    logits: [..., V] float32.
    k: int32, broadcast against the leading axes.
  """
  masked = _keep_most_likely(logits, lambda kept: kept.sum(-1) >= k)
  return jnp.where((k > 0)[..., None], masked, logits)


def top_p_mask(logits: Array, p: Array) -> Array:
  """Keeps the smallest most likely set of mass at least p and every tie with its last; p <= 0 keeps all.

  Args:
    logits: [..., V] float32.
    p: float32, broadcast against the leading axes.
  """
  probability = jax.nn.softmax(logits, axis=-1)
  masked = _keep_most_likely(logits, lambda kept: jnp.where(kept, probability, 0.0).sum(-1) >= p)
  return jnp.where((p > 0)[..., None], masked, logits)


def to_law(logits: Array, settings: Sampling) -> Array:
  """Temperature, top-k, top-p and normalisation.

  Args:
    logits: [B, N, V] float32, from `process`.
    settings: of each row.

  Returns:
    log-probabilities [B, N, V], -inf where impossible. A greedy row gets the
    point mass on its (first) argmax. Where the logits hold a NaN, a +inf or
    nothing but -inf, the law is NaN throughout, so that nothing can be drawn
    from it unnoticed.

  Example:
    >>> import jax.numpy as jnp
    >>> law = to_law(jnp.log(jnp.array([[[.5, .25, .25]]])), sampling(1, temperature=1., top_p=.5))
    >>> jnp.exp(law).tolist()
    [[[1.0, 0.0, 0.0]]]
  """
  greedy = settings.temperature <= GREEDY_TEMPERATURE
  # Under `cond` and not only `where`: a batch that is all greedy, or has no masks, does not pay for them.
  return jax.lax.cond(jnp.all(greedy), _point_mass, lambda x: _sampled_law(x, settings, greedy), logits)


def _point_mass(logits: Array) -> Array:
  """The law of argmax."""
  best = logits.max(axis=-1, keepdims=True)
  index = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  law = jnp.where(argmax(logits)[..., None] == index, 0.0, -jnp.inf)
  return jnp.where(jnp.isfinite(best), law, jnp.nan)


def _sampled_law(logits: Array, settings: Sampling, greedy: Array) -> Array:
  """The law of each row, some of which may be greedy."""
  best = logits.max(axis=-1, keepdims=True)
  tempered = (logits - best) / jnp.maximum(settings.temperature, GREEDY_TEMPERATURE)[:, None, None]
  masks = (settings.top_k > 0) | (settings.top_p > 0)
  masked = lambda x: top_p_mask(top_k_mask(x, settings.top_k[:, None]), settings.top_p[:, None])
  tempered = jax.lax.cond(jnp.any(masks & ~greedy), masked, lambda x: x, tempered)
  log_p = tempered - jnp.log(jnp.sum(jnp.exp(tempered), axis=-1, keepdims=True))
  log_p = jnp.where(jnp.isfinite(best), log_p, jnp.nan)
  return jax.lax.cond(
      jnp.any(greedy), lambda x: jnp.where(greedy[:, None, None], _point_mass(logits), x), lambda x: x, log_p
  )
