"""What is left of the target after a draft was rejected."""

import jax
import jax.numpy as jnp

Array = jax.Array


def residual_mass(p: Array, q: Array) -> Array:
  """The unnormalised residual `max(0, p - q)`, or p where that is empty.

  Its sum is 1 - beta. It is empty only where q covers p, so that a rejection
  has probability 0 (or is a rounding accident); p is then the right law.

  Args:
    p: [..., V] target probabilities.
    q: [..., V] draft probabilities.

  Returns:
    [..., V], not normalised.

  Example:
    >>> import jax.numpy as jnp
    >>> [round(float(x), 2) for x in residual_mass(jnp.array([.5, .5, 0.]), jnp.array([.9, .1, 0.]))]
    [0.0, 0.4, 0.0]

  Source: Leviathan et al. 2023, Algorithm 1 and A.1.
  """
  rest = jnp.maximum(p - q, 0.0)
  return jnp.where(rest.sum(-1, keepdims=True) > 0, rest, p)
