"""Leaf functions of the T5 layers: pure arrays in, arrays out.

Every function takes its weights as arguments, so that the Flax module that
trains (`networks.t5`) and the cached path that decodes (`networks.t5_decoder`)
compute the same thing.

Source: Raffel et al. 2020, "Exploring the limits of transfer learning"
(T5 1.0), and the public description of T5 1.1 (gated GELU, untied output).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Array = jax.Array

MASKED = -1e10  # T5X's bias for a masked attention logit; finite, so that a fully masked row is not NaN.

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,  # the tanh approximation, as T5X
    "silu": jax.nn.silu,
    "linear": lambda x: x,
}


def activation(name: str) -> Callable[[Array], Array]:
  """Looks up one activation of a T5 `mlp_activations` tuple.

  Raises:
    ValueError: the name is not in `ACTIVATIONS`.
  """
  if name not in ACTIVATIONS:
    raise ValueError(f"activation: expected one of {sorted(ACTIVATIONS)}, found {name!r}.")
  return ACTIVATIONS[name]


def rms_norm(x: Array, scale: Array, axis: int = -1, epsilon: float = 1e-6) -> Array:
  """Divides by the root mean square over `axis`: no mean, no bias.

  The moment is taken in float32 whatever the dtype of `x`, as T5X does.

  Args:
    x: any shape, the features along `axis`.
    scale: [E], one factor a feature.
    axis: the feature axis; -1 for rows of features, 0 for columns.
    epsilon: added to the mean square.

  Returns:
    `x / sqrt(mean(x^2) + epsilon) * scale`, of the shape and dtype of `x`.

  Example:
    >>> import jax.numpy as jnp
    >>> rms_norm(jnp.array([3., 4.]), jnp.ones(2)).round(3).tolist()
    [0.8489999771118164, 1.1319999694824219]

  Source: Zhang and Sennrich 2019, "Root mean square layer normalization".
  """
  square = jnp.mean(jax.lax.square(x.astype(jnp.float32)), axis=axis, keepdims=True)
  shape = [1] * x.ndim
  shape[axis] = x.shape[axis]
  normalised = (x * jax.lax.rsqrt(square + epsilon)).astype(x.dtype)
  return normalised * scale.astype(x.dtype).reshape(shape)


def relative_position_bucket(relative_position: Array, bidirectional: bool, num_buckets: int, max_distance: int) -> Array:
  """Buckets `key position - query position`: exact when near, logarithmic when far.

  Args:
    relative_position: int32, any shape.
    bidirectional: True in the encoder (half of the buckets look ahead), False
      in the decoder (everything ahead is bucket 0, and is masked anyway).
    num_buckets: number of buckets in all.
    max_distance: everything at least this far shares the last bucket.

  Returns:
    int32 in [0, num_buckets), of the shape of `relative_position`.

  Example:
    >>> relative_position_bucket(jnp.array([0, -1, -127, -500]), False, 32, 128).tolist()
    [0, 1, 31, 31]

  Source: Raffel et al. 2020, section 2.1.
  """
  bucket = jnp.zeros_like(relative_position)
  distance = -relative_position
  if bidirectional:
    num_buckets //= 2
    bucket = bucket + (distance < 0).astype(jnp.int32) * num_buckets
    distance = jnp.abs(distance)
  else:
    distance = jnp.maximum(distance, 0)
  max_exact = num_buckets // 2
  # Positive inside the logarithm: the branch that takes it is not chosen for near positions.
  far = jnp.maximum(distance, max_exact).astype(jnp.float32)
  steps = jnp.log(far / max_exact) / jnp.log(max_distance / max_exact) * (num_buckets - max_exact)
  far_bucket = jnp.minimum(max_exact + steps.astype(jnp.int32), num_buckets - 1)
  return bucket + jnp.where(distance < max_exact, distance, far_bucket)
