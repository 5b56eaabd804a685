"""The children of a node: several tokens drawn from one law, in order, with their randomness laid open.

Dimensions: K children, V vocabulary; leading axes are free.
"""

import jax
import jax.numpy as jnp

from specdec.probability import sampling as draw
from specdec.trees.growth import NO_TOKEN

Array = jax.Array

# Added to the noise of tokens that the law excludes, so that they come after all others: log q above float32's least
# normal number is at least -88, and standard Gumbel noise lies within -5 and 20.
_EXCLUDED = -200.0


def without_replacement(uniform: Array, noise: Array | None, log_q: Array, count: int, fills: bool) -> Array:
  """Draws children one after the other, each from the law with the earlier ones taken out.

  The first inverts the cumulative sum of q at `uniform`, so that a chain is
  drawn as `drafters.model` draws it. The others are the order of
  `log q(x) + noise(x)`: the exponential race, whose finish is a draw without
  replacement.

  Args:
    uniform: [...] in [0, 1).
    noise: [..., V], standard Gumbel; None where `count` is 1.
    log_q: [..., V].
    count: K.
    fills: whether tokens outside the law follow, in uniformly random order.

  Returns:
    int32 [..., K]; `NO_TOKEN` for children beyond the law where it does not fill.

  Raises:
    ValueError: it fills, and K is larger than V.

  Example:
    >>> law = jnp.log(jnp.array([.5, .3, .2, 0.]))
    >>> without_replacement(jnp.array(.6), jnp.array([0., 0., 1., 9.]), law, 4, fills=False).tolist()
    [1, 2, 0, -1]

  Source: Kool, van Hoof and Welling 2019, "Stochastic beams and where to find them" (the race); Chen et al. 2024
  (Sequoia), section 3.2 (without replacement).
  """
  vocab = log_q.shape[-1]
  if fills and count > vocab:
    raise ValueError(f"children: expected at most {vocab} of a node, one a token of the vocabulary, found {count}.")
  first = draw.from_law(uniform, log_q)
  if count == 1:
    return first[..., None]
  possible = jnp.exp(log_q) > 0
  score = jnp.where(possible, log_q, _EXCLUDED) + noise
  score = jnp.where(jnp.arange(vocab) == first[..., None], jnp.inf, score)
  return _ranked(score, possible | fills, count)


def with_replacement(uniform: Array, others: Array | None, log_q: Array, count: int) -> Array:
  """Draws K tokens independently.

  Args:
    uniform: [...] in [0, 1), of the first.
    others: [..., K - 1] in [0, 1); None where `count` is 1.
    log_q: [..., V].
    count: K.

  Returns:
    int32 [..., K].
  """
  if count == 1:
    return draw.from_law(uniform, log_q)[..., None]
  every = jnp.concatenate([uniform[..., None], others], axis=-1)
  return draw.from_law(every, jnp.broadcast_to(log_q[..., None, :], (*every.shape, log_q.shape[-1])))


def most_likely(logits: Array, count: int, fills: bool) -> Array:
  """The K largest logits in falling order, the first of equals first: what a greedy row drafts.

  Args:
    logits: [..., V].
    count: K.
    fills: whether impossible tokens (-inf) follow the others.

  Returns:
    int32 [..., K]; `NO_TOKEN` beyond the possible ones where it does not fill.

  Example:
    >>> most_likely(jnp.array([1., 3., -jnp.inf, 2.]), 4, fills=False).tolist()
    [1, 3, 0, -1]
  """
  if count == 1:
    return draw.argmax(logits)[..., None]
  return _ranked(logits, (logits > -jnp.inf) | fills, count)


def _ranked(score: Array, allowed: Array, count: int) -> Array:
  kept = min(count, score.shape[-1])
  tokens = jax.lax.top_k(score, kept)[1]
  tokens = jnp.where(jnp.take_along_axis(allowed, tokens, axis=-1), tokens, NO_TOKEN)
  pad = [(0, 0)] * (tokens.ndim - 1) + [(0, count - kept)]
  return jnp.pad(tokens, pad, constant_values=NO_TOKEN).astype(jnp.int32)


def chances(tokens: Array, log_q: Array, replacement: bool = False) -> Array:
  """The probability of each child when it was drawn: `q(y_k) / (1 - sum_{j < k} q(y_j))`, or q itself with replacement.

  Args:
    tokens: [..., K] int32, `NO_TOKEN` has none.
    log_q: [..., K], log q of each of them.
    replacement: whether earlier siblings stay in.

  Returns:
    float32 [..., K] in [0, 1].
  """
  at = jnp.where(tokens == NO_TOKEN, 0.0, jnp.nan_to_num(jnp.exp(log_q), nan=0.0))
  if replacement:
    return at
  left = 1.0 - (jnp.cumsum(at, axis=-1) - at)
  return jnp.clip(at / jnp.maximum(left, jnp.finfo(at.dtype).tiny), 0.0, 1.0)


def at_tokens(x: Array, tokens: Array) -> Array:
  """The entries of x [..., V] at tokens [..., K]; at token 0 for `NO_TOKEN`."""
  return jnp.take_along_axis(x, jnp.maximum(tokens, 0), axis=-1)
