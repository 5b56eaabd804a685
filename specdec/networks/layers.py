"""Leaf functions of the T5 layers: pure arrays in, arrays out.

Every function takes its weights as arguments, so that the Flax module that
trains (`networks.t5`) and the cached path that decodes (`networks.t5_decoder`)
compute the same thing.

Source: Raffel et al. 2020, "Exploring the limits of transfer learning"
(T5 1.0), and the public description of T5 1.1 (gated GELU, untied output).
"""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

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
    >>> [round(float(x), 3) for x in rms_norm(jnp.array([3., 4.]), jnp.ones(2))]
    [0.849, 1.131]

  Source: Zhang and Sennrich 2019, "Root mean square layer normalization".
  """
  square = jnp.mean(jax.lax.square(x.astype(jnp.float32)), axis=axis, keepdims=True)
  shape = [1] * x.ndim
  shape[axis] = x.shape[axis]
  normalised = (x * jax.lax.rsqrt(square + epsilon)).astype(x.dtype)
  return normalised * scale.astype(x.dtype).reshape(shape)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kernel:
  """A weight matrix in one of two layouts, or several that read the same input, and their product with columns.

  On XLA's CPU backend the best form depends on the size. `W[out, in] @ y[in, m]`
  wins where weights stream from memory: for a T5-base decoder (495 MB) 14.1
  against 18.6 ms for m = 1 and 26.4 against 35.0 ms for m = 8. `x[m, in] @
  W[in, out]` wins for small matrices: for 24 MB of width 384, 0.85 against 1.18
  ms for m = 1 and about the same for m = 8. (2 cores of an AMD EPYC, jax 0.10.2,
  float32, medians of one run, 2026-11-30.)

  P matrices in one array are one product. They are stacked along an axis of
  their own, and not joined along `out`: to split a joined axis that lies on
  several chips would move its parts from chip to chip.

  Attributes:
    array: [out, in] or [in, out]; of several [P, out, in] or [in, P, out].
    out_first: static; which of the two.
  """

  array: Array
  out_first: bool = dataclasses.field(metadata={"static": True})

  @classmethod
  def lay_out(cls, out_first: bool, *kernels: Array) -> "Kernel":
    """From one or several of Flax's kernels [in, out]."""
    if len(kernels) == 1:
      return cls(kernels[0].T if out_first else kernels[0], out_first)
    if out_first:
      return cls(jnp.stack([kernel.T for kernel in kernels]), True)
    return cls(jnp.stack(kernels, axis=1), False)

  def take_apart(self) -> list[Array]:
    """The inverse of `lay_out`: Flax's kernels [in, out]."""
    if self.out_first:
      return [kernel.T for kernel in (self.array if self.array.ndim == 3 else self.array[None])]
    return list(jnp.unstack(self.array, axis=1)) if self.array.ndim == 3 else [self.array]

  def __matmul__(self, y: Array) -> Array:
    """Columns y [in, m] -> columns [out, m] or [P, out, m], in the dtype of y."""
    weights = self.array.astype(y.dtype)
    if self.out_first:
      return jnp.tensordot(weights, y, 1)
    # The barriers keep XLA from folding the transposes into a product of the slow form (7.5 ms where 1.5 will do).
    rows = jax.lax.optimization_barrier(y.T)
    return jnp.moveaxis(jax.lax.optimization_barrier(jnp.tensordot(rows, weights, 1)), 0, -1)


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
  sign = 0
  distance = -relative_position
  if bidirectional:
    num_buckets //= 2
    sign = (distance < 0).astype(jnp.int32) * num_buckets
    distance = jnp.abs(distance)
  # A table made on the host: a device's own logarithm may fall on the other side of an edge.
  near = num_buckets // 2
  table = np.arange(max(near, max_distance) + 1)
  far = np.maximum(table, near).astype(np.float32) / near + np.finfo(np.float32).eps
  steps = np.log(far) / np.log(max_distance / near) * (num_buckets - near)
  table = np.where(table < near, table, np.minimum(near + steps.astype(np.int32), num_buckets - 1))
  return sign + jnp.asarray(table, jnp.int32)[jnp.clip(distance, 0, table.size - 1)]
