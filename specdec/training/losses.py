"""Losses of sequence models, as T5X defines them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

Array = jax.Array


class LossSums(NamedTuple):
  """Sums over the tokens of a batch; divide by `weight` for means.

  Attributes:
    loss: what is minimised, label smoothing and z-loss included.
    log_likelihood: of the targets, nats.
    correct: tokens whose argmax is the target.
    weight: tokens counted.
  """

  loss: Array
  log_likelihood: Array
  correct: Array
  weight: Array


def cross_entropy(
    logits: Array, targets: Array, weights: Array, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> LossSums:
  """Cross entropy with label smoothing and z-loss, summed over tokens.

  A target y becomes the law with 1 - s on y and s / (V - 1) on the others,
  and its entropy is subtracted, so that a perfect model has loss 0.
  z-loss adds `z_loss * logsumexp(logits)^2`.

  Args:
    logits: [B, L, V].
    targets: [B, L] int32.
    weights: [B, L], 0 on pads.
    label_smoothing: s in [0, 1).
    z_loss: coefficient, 1e-4 in T5 1.1.

  Returns:
    `LossSums` of float32 scalars.

  Source: Szegedy et al. 2016, section 7; T5X `losses.compute_weighted_cross_entropy`.
  """
  logits = logits.astype(jnp.float32)
  size = logits.shape[-1]
  log_z = jax.nn.logsumexp(logits, axis=-1)
  nll = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
  loss = nll
  if label_smoothing:
    low = label_smoothing / (size - 1)
    high = 1.0 - label_smoothing
    others = size * log_z - logits.sum(-1) - nll
    entropy = -(high * jnp.log(high) + (size - 1) * low * jnp.log(low + 1e-20))
    loss = high * nll + low * others - entropy
  loss = loss + z_loss * jnp.square(log_z)
  correct = (logits.argmax(-1) == targets).astype(jnp.float32)
  total = lambda x: jnp.sum(x * weights)
  return LossSums(total(loss), total(-nll), total(correct), jnp.sum(weights))
