"""How often a drafted token is accepted, from the two laws alone.

p is the target's law and q the draft's, both after the sampling transform, as
[.., V] arrays of probabilities; Chen et al. 2023 exchange the two letters. The
functions run under `jit`. `D_LK` itself is `specdec.probability.divergence.d_lk`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from specdec.probability import divergence

Array = jax.Array


def _at_the_door(p: Array, q: Array, lenience: float | Array) -> tuple[Array, Array, Array]:
  """Checks all three and brings them to the shapes [.., V], [.., V] and [.., 1]."""
  p, q = divergence.aligned(p, q)
  # A JAX array is not read: it may be traced, and a call inside `jit` must do what it does outside.
  if not isinstance(lenience, jax.Array):
    value = np.asarray(lenience)
    if value.dtype.kind not in "fiu" or not np.all((value >= 0) & (value <= 1)):
      raise ValueError(f"lenience: expected numbers in [0, 1], found {lenience!r}.")
  lenience = jnp.asarray(lenience).astype(p.dtype)
  try:
    shape = jnp.broadcast_shapes(p.shape[:-1], lenience.shape)
  except ValueError as error:
    raise ValueError(
        f"lenience: expected a shape that broadcasts with {p.shape[:-1]}, found {lenience.shape}."
    ) from error
  laws = (*shape, p.shape[-1])
  return jnp.broadcast_to(p, laws), jnp.broadcast_to(q, laws), jnp.broadcast_to(lenience, shape)[..., None]


def beta(p: Array, q: Array, lenience: float | Array = 1.0) -> Array:
  """Probability that a token drawn from q is accepted at one prefix.

  `beta = 1 - D_LK(p, q) = sum_x min(p(x), q(x))`; with lenience l the draft is
  compared as l q(x), so that `beta(l) = sum_x min(p(x) / l, q(x))`. l = 0 is
  the limit: every token that the target can emit is accepted. `1 - beta` at
  l = 1 is also the normaliser of the residual law (A.1).

  Args:
    p: [.., V] target probabilities, each row sums to 1.
    q: [.., V] draft probabilities, each row sums to 1.
    lenience: l in [0, 1], a scalar or [..]; 1 is the exact rule. Numbers are
      checked; JAX arrays, which may be traced, are not.

  Returns:
    [..] in [0, 1].

  Raises:
    ValueError: different V, shapes that do not broadcast, not floating, or a
      lenience outside [0, 1].

  Example:
    >>> import jax.numpy as jnp
    >>> p, q = jnp.array([.5, .5, 0.]), jnp.array([.75, .125, .125])
    >>> [beta(p, q, l).tolist() for l in (1., .8, 0.)]
    [0.625, 0.75, 0.875]

  Source: Leviathan et al. 2023, Theorem 3.5 and appendix A.5.
  """
  p, q, scale = _at_the_door(p, q, lenience)
  # p = 0 stays 0 at l = 0, where the quotient would be NaN.
  raised = jnp.where(p == 0, 0.0, p / scale)
  return jnp.minimum(divergence.overlap(raised, q), 1.0)


def alpha(p: Array, q: Array, lenience: float | Array = 1.0, weights: Array | None = None) -> Array:
  """Mean acceptance probability over prefixes.

  `alpha = E[beta] = E[sum_x min(p(x) / l, q(x))]`. Table 3 of the paper takes
  the mean over prefixes of the target's own text; it is not a count of
  accepted drafts.

  Args:
    p: [.., V] target probabilities, one row a prefix.
    q: [.., V] draft probabilities at the same prefixes.
    lenience: l in [0, 1], as in `beta`.
    weights: [..] non-negative, 0 on padding; None counts every prefix once.

  Returns:
    A scalar in [0, 1]; NaN when all weights are 0.

  Raises:
    ValueError: as `beta`, or weights that are not of the shape of the prefixes.

  Example:
    >>> alpha(jnp.array([[1., 0.], [.5, .5]]), jnp.array([[.5, .5], [.5, .5]])).tolist()
    0.75

  Source: Leviathan et al. 2023, Corollary 3.6 and section 4.2.
  """
  betas = beta(p, q, lenience)
  if weights is None:
    return jnp.minimum(jnp.mean(betas), 1.0)
  weights = jnp.asarray(weights)
  if weights.shape != betas.shape:
    raise ValueError(f"weights: expected one weight a prefix, {betas.shape}, found {weights.shape}.")
  weights = weights.astype(betas.dtype)
  return jnp.minimum(jnp.sum(jnp.where(weights == 0, 0.0, weights * betas)) / jnp.sum(weights), 1.0)


def beta_argmax(p: Array, q: Array, lenience: float | Array = 1.0) -> Array:
  """Acceptance at temperature 0, where the draft is the argmax of q.

  The token x is accepted iff `p(x) >= l max_x' p(x')`, p and q being the laws
  before the argmax. The paper prints `<=`, which at l = 1 would accept every
  token; the direction here is the one that at l = 1 accepts only the argmax.

  Args:
    p: [.., V] target probabilities at temperature 1.
    q: [.., V] draft probabilities at temperature 1; ties draft the first token.
    lenience: l in [0, 1], as in `beta`.

  Returns:
    [..], 1 where the draft is accepted, else 0. A token that ties with the
    largest p counts as accepted. 0 where p has a NaN.

  Raises:
    ValueError: as `beta`.

  Example:
    >>> p, q = jnp.array([.5, .3, .2]), jnp.array([.2, .5, .3])
    >>> [beta_argmax(p, q, l).tolist() for l in (1., .5)]
    [0.0, 1.0]

  Source: Leviathan et al. 2023, appendix A.5, with the misprint corrected.
  """
  p, q, scale = _at_the_door(p, q, lenience)
  drafted = jnp.argmax(q, axis=-1, keepdims=True)
  chosen = jnp.take_along_axis(p, drafted, axis=-1)
  accepted = chosen >= scale * jnp.max(p, axis=-1, keepdims=True)
  return accepted[..., 0].astype(p.dtype)


def beta_rejection(p: Array, q: Array) -> Array:
  """Acceptance of plain rejection sampling, for comparison with `beta`.

  Accept x ~ q with probability `p(x) / (M q(x))`, `M = max_x p(x) / q(x)`,
  else draw from p: the mean is `sum_x p(x) min_x' q(x') / p(x') = 1 / M`, the
  minimum being over tokens with p(x') > 0. Never above `beta(p, q)`.

  Args:
    p: [.., V] target probabilities.
    q: [.., V] draft probabilities.

  Returns:
    [..] in [0, 1]; 0 where q misses a token that p can emit.

  Raises:
    ValueError: different V, shapes that do not broadcast, or not floating.

  Example:
    >>> p, q = jnp.array([.5, .5]), jnp.array([.75, .25])
    >>> beta_rejection(p, q).tolist(), beta(p, q).tolist()
    (0.5, 0.75)

  Source: Leviathan et al. 2023, appendix A.2.
  """
  p, q = divergence.aligned(p, q)
  ratio = jnp.where(p == 0, jnp.inf, q / jnp.where(p == 0, 1.0, p))
  return jnp.minimum(jnp.min(ratio, axis=-1), 1.0)
