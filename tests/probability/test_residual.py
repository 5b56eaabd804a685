"""`probability.residual` against its formula in NumPy."""

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from specdec.probability.residual import residual_mass

mass = jax.jit(residual_mass)
laws = st.lists(st.integers(0, 8), min_size=4, max_size=4).filter(any).map(lambda x: np.float32(x) / np.float32(sum(x)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(p=laws, q=laws)
def test_formula(p, q):
  rest = np.maximum(np.float64(p) - np.float64(q), 0)
  expected = rest if rest.sum() > 1e-9 else p
  np.testing.assert_allclose(mass(p, q), expected, atol=1e-7)
  assert (np.asarray(mass(p, q))[np.asarray(p) == 0] == 0).all()  # What the target forbids is never corrected to.


def test_normaliser_is_one_minus_beta():
  p, q = np.float32([0.5, 0.3, 0.2]), np.float32([0.1, 0.2, 0.7])
  np.testing.assert_allclose(mass(p, q).sum(), 1 - np.minimum(p, q).sum(), atol=1e-6)


def test_empty_residual_is_the_target():
  p = jnp.array([0.0, 0.25, 0.75])
  np.testing.assert_array_equal(mass(p, p), p)


def test_rows_are_independent():
  p = jnp.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
  q = jnp.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
  np.testing.assert_allclose(mass(p, q), [[0.0, 0.4, 0.0], [0.2, 0.3, 0.5]], atol=1e-7)
