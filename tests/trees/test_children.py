"""`trees.children`: the race draws without replacement, and its edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.trees import children
from tests import oracles


def test_order_is_drawn_without_replacement():
  """Chi-square of 20,000 orders against the sequential law, one token impossible; false alarm 1e-4."""
  q, rows = np.array([0.5, 0.3, 0.0, 0.15, 0.05]), 20_000
  key_first, key_noise = jax.random.split(jax.random.key(5))
  uniform = jax.random.uniform(key_first, (rows,))
  noise = jax.random.gumbel(key_noise, (rows, 5))
  log_q = jnp.broadcast_to(jnp.log(jnp.float32(q)), (rows, 5))
  found = np.asarray(children.without_replacement(uniform, noise, log_q, 3, False))
  law = {}
  for a in range(5):
    for b in set(range(5)) - {a}:
      for c in set(range(5)) - {a, b}:
        mass = q[a] * q[b] * q[c]
        if mass:
          law[a, b, c] = mass / (1 - q[a]) / (1 - q[a] - q[b])
  assert abs(sum(law.values()) - 1) < 1e-9
  assert oracles.p_value_against(law, [tuple(row) for row in found.tolist()]) > 1e-4
  filled = np.asarray(children.without_replacement(uniform, noise, log_q, 5, True))
  assert (filled[:, 4] == 2).all() and (np.sort(filled, axis=1) == np.arange(5)).all()
  stopped = np.asarray(children.without_replacement(uniform, noise, log_q, 7, False))
  assert (stopped[:, 4:] == children.NO_TOKEN).all() and (stopped[:, :4] != 2).all()


def test_tokens_outside_the_law_follow_in_any_order():
  q, rows = np.array([1.0, 0.0, 0.0, 0.0]), 6_000
  noise = jax.random.gumbel(jax.random.key(1), (rows, 4))
  log_q = jnp.broadcast_to(jnp.log(jnp.float32(q)), (rows, 4))
  found = np.asarray(children.without_replacement(jnp.full((rows,), 0.3), noise, log_q, 3, True))
  assert (found[:, 0] == 0).all()
  law = {(0, a, b): 1 / 6 for a in (1, 2, 3) for b in (1, 2, 3) if a != b}
  assert oracles.p_value_against(law, [tuple(row) for row in found.tolist()]) > 1e-4


def test_with_replacement_inverts_the_law():
  log_q = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
  found = children.with_replacement(jnp.array([0.6]), jnp.array([[0.1, 0.9]]), log_q, 3)
  assert found.tolist() == [[1, 0, 2]]


def test_chances():
  log_q = jnp.log(jnp.array([0.5, 0.3, 0.2, 0.0]))
  of = lambda tokens, replacement=False: children.chances(
      jnp.array(tokens), children.at_tokens(log_q, jnp.array(tokens)), replacement
  )
  np.testing.assert_allclose(of([1, 0, 2, -1]), [0.3, 0.5 / 0.7, 1.0, 0.0], rtol=1e-5)
  np.testing.assert_allclose(of([1, 1, 2], True), [0.3, 0.3, 0.2], rtol=1e-5)
  assert np.isfinite(children.chances(jnp.array([0, 1]), jnp.array([jnp.nan, -0.5]))).all()


def test_a_node_has_no_more_children_than_tokens():
  with pytest.raises(ValueError, match="at most 3"):
    children.without_replacement(jnp.array(0.5), jnp.zeros(3), jnp.zeros(3), 4, True)
