"""`training.losses` against float64 NumPy, written from the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.training import losses


def oracle(logits, targets, weights, smoothing, z_loss):
  """Loss, log-likelihood, correct and weight; the target law has 1 - s on y and s / (V - 1) elsewhere."""
  loss = likelihood = correct = 0.0
  for row, target, weight in zip(logits.reshape(-1, logits.shape[-1]), targets.ravel(), weights.ravel(), strict=True):
    row = np.float64(row)
    log_z = np.log(np.exp(row - row.max()).sum()) + row.max()
    log_p = row - log_z
    law = np.full(len(row), smoothing / (len(row) - 1))
    law[target] = 1 - smoothing
    entropy = -sum(p * np.log(p) for p in law if p > 0)
    loss += weight * (-law @ log_p - entropy + z_loss * log_z**2)
    likelihood += weight * log_p[target]
    correct += weight * (row.argmax() == target)
  return loss, likelihood, correct, weights.sum()


@pytest.fixture(scope="module")
def batch():
  rng = np.random.default_rng(0)
  logits = np.float32(rng.normal(size=(3, 5, 7)) * 3 + 2)
  targets = rng.integers(0, 7, (3, 5)).astype(np.int32)
  weights = np.float32(rng.random((3, 5)) < 0.7)
  return logits, targets, weights


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_sums(batch, smoothing, z_loss):
  found = losses.cross_entropy(*batch, smoothing, z_loss)
  np.testing.assert_allclose(found, oracle(*batch, smoothing, z_loss), rtol=1e-5)


def test_fractional_weights_and_bfloat16(batch):
  logits, targets, weights = batch
  weights = weights * 0.25
  half = jnp.asarray(logits, jnp.bfloat16)
  found = losses.cross_entropy(half, targets, weights, 0.1, 1e-3)
  assert {x.dtype for x in found} == {jnp.dtype(jnp.float32)}
  np.testing.assert_allclose(found, oracle(np.asarray(half, np.float32), targets, weights, 0.1, 1e-3), rtol=1e-5)


def test_a_perfect_model_has_loss_0():
  smoothing, size = 0.1, 7
  law = np.full(size, smoothing / (size - 1), np.float32)
  law[2] = 1 - smoothing
  found = losses.cross_entropy(jnp.log(law)[None, None], jnp.array([[2]]), jnp.ones((1, 1)), smoothing)
  assert abs(float(found.loss)) < 1e-6
  worse = losses.cross_entropy(jnp.log(law)[None, None] * 1.1, jnp.array([[2]]), jnp.ones((1, 1)), smoothing)
  assert float(worse.loss) > 1e-4


def test_what_weighs_nothing_changes_nothing(batch):
  logits, targets, weights = batch
  other = np.where(weights[..., None] > 0, logits, 100.0)
  anything = np.where(weights > 0, targets, 0)
  gradient = jax.grad(lambda x: losses.cross_entropy(x, targets, weights, 0.1, 1e-3).loss)
  found = losses.cross_entropy(other, anything, weights, 0.1, 1e-3)
  np.testing.assert_allclose(found, losses.cross_entropy(*batch, 0.1, 1e-3), rtol=1e-6)
  assert not np.asarray(gradient(logits))[weights == 0].any()


def test_gradient_without_extras_is_softmax_minus_one_hot(batch):
  logits, targets, weights = batch
  found = jax.grad(lambda x: losses.cross_entropy(x, targets, weights).loss)(logits)
  p = np.exp(logits - logits.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  np.testing.assert_allclose(found, (p - np.eye(7)[targets]) * weights[..., None], atol=1e-6)
