"""`training.optimizers`: schedules at their corners, and what the two optimizers promise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from specdec.training import optimizers


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.0), (1, 0.002), (5, 0.01), (10, 0.02), (11, 0.02 * 29 / 30), (25, 0.01), (39, 0.02 / 30), (40, 0), (99, 0)],
)
def test_warmup_linear_decay(step, rate):
  assert float(optimizers.warmup_linear_decay(0.02, 10, 40)(step)) == pytest.approx(rate, rel=1e-5, abs=1e-9)


def test_warmup_longer_than_the_run_stays_finite():
  schedule = optimizers.warmup_linear_decay(0.02, 10, 5)
  assert all(0 <= float(schedule(step)) <= 0.02 for step in range(20))


@pytest.mark.parametrize(("step", "rate"), [(0, 0.5), (1, 0.5), (4, 0.5), (16, 0.25), (100, 0.1)])
def test_warmup_rsqrt(step, rate):
  assert float(optimizers.warmup_rsqrt(1.0, 4)(step)) == pytest.approx(rate)
  assert float(jax.jit(optimizers.warmup_rsqrt(2.0, 4))(jnp.int32(step))) == pytest.approx(2 * rate)


def updates(optimizer, gradient, params, steps=1):
  """The updates of the last of `steps` steps with one gradient."""
  state = optimizer.init(params)
  for _ in range(steps):
    update, state = optimizer.update(gradient, state, params)
  return update


def test_adamw_clips_by_the_global_norm():
  params = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
  gradient = {"a": jnp.array([3.0, 0.0, 0.0]), "b": jnp.array([0.0, 4.0])}
  clipped, _ = optax.clip_by_global_norm(1.0).update(gradient, optax.EmptyState())
  np.testing.assert_allclose(clipped["b"], [0.0, 0.8], rtol=1e-6)
  # Adam alone forgets the scale of one gradient, so the clipping shows in the second moment of a mixed history.
  optimizer = optimizers.adamw(0.1, clip_norm=1.0)
  state = optimizer.init(params)
  _, state = optimizer.update(jax.tree.map(lambda g: 1000 * g, gradient), state, params)
  (moments,) = [s for s in jax.tree.leaves(state, is_leaf=lambda s: hasattr(s, "nu")) if hasattr(s, "nu")]
  np.testing.assert_allclose(moments.nu["b"], (1 - 0.98) * np.square([0.0, 0.8]), rtol=1e-4)


def test_adamw_decays_weights_and_follows_its_schedule():
  params = {"w": jnp.array([2.0, -4.0])}
  nothing = {"w": jnp.zeros(2)}
  update = updates(optimizers.adamw(0.5, weight_decay=0.1), nothing, params)
  np.testing.assert_allclose(update["w"], [-0.1, 0.2], rtol=1e-6)
  schedule = optimizers.warmup_linear_decay(1.0, 2, 4)  # 0, 1/2, 1, 1/2
  for steps, rate in ((1, 0.0), (2, 0.5), (3, 1.0), (4, 0.5)):
    update = updates(optimizers.adamw(schedule, weight_decay=0.1), nothing, params, steps)
    np.testing.assert_allclose(update["w"], -0.1 * rate * params["w"], rtol=1e-6, atol=1e-8)


def test_adafactor_steps_relative_to_the_size_of_a_weight():
  gradient = {"small": jnp.full((4, 4), 5.0), "large": jnp.full((4, 4), 1e-3)}
  params = {"small": jnp.full((4, 4), 0.1), "large": jnp.full((4, 4), 10.0)}
  update = updates(optimizers.adafactor(0.01), gradient, params)
  for name, size in (("small", 0.1), ("large", 10.0)):
    np.testing.assert_allclose(update[name], -0.01 * size, rtol=1e-3)
