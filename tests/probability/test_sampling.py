"""`probability.sampling`: the law of a draw is the mass it was given.

Exact: the uniform's interval is cut where the cumulative mass says (float64,
NumPy), the real function is asked at several points of every cell, and the
cells' widths are summed.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.probability import sampling

from_mass = jax.jit(sampling.from_mass)
LARGEST = np.nextafter(np.float32(1), np.float32(0))  # The largest uniform.


def drawn_law(mass, points=5):
  """The law of `from_mass` [V], integrated over the uniform; asserts that no cell has two answers."""
  edges = np.concatenate([[0.0], np.cumsum(np.float64(mass)) / np.float64(mass).sum()])
  low, high = edges[:-1], edges[1:]
  wide = high - low > 1e-6  # A narrower cell is within the tolerance whatever is drawn there.
  low, width = low[wide], (high - low)[wide]
  margin = np.minimum(4e-7, width / 3)[:, None]  # What float32 cannot tell from the edge.
  inside = np.random.default_rng(0).uniform(size=(len(width), points))
  uniform = np.float32(low[:, None] + margin + inside * (width[:, None] - 2 * margin))
  token = np.asarray(from_mass(jnp.asarray(uniform), jnp.broadcast_to(jnp.asarray(mass), (*uniform.shape, len(mass)))))
  assert (token == token[:, :1]).all(), "a cell with two answers"
  return np.bincount(token[:, 0], weights=width, minlength=len(mass))


@pytest.mark.parametrize(
    "mass",
    [
        [0.2, 0.5, 0.3],
        [0.0, 2.0, 0.0, 6.0],
        [1.0],
        [0.0, 0.0, 1e-3],
        [0.125] * 8,
        list(np.random.default_rng(1).dirichlet(np.ones(64))),  # One whole block.
        list(np.random.default_rng(2).dirichlet(np.ones(65))),  # A block and one.
        [0.0] * 100 + [1.0, 0.0, 2.0] + [0.0] * 97,  # Empty blocks around.
        list(np.random.default_rng(3).dirichlet(np.ones(200) * 0.5)),
    ],
    ids=lambda mass: f"V{len(mass)}",
)
def test_law_is_the_normalised_mass(mass):
  mass = np.float32(mass)
  np.testing.assert_allclose(drawn_law(mass), np.float64(mass) / np.float64(mass).sum(), atol=1e-6)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    mass=st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-7, 0.1, 0.25, 1.0, 3e4]), min_size=70, max_size=70),
    uniform=st.sampled_from([0.0, 1e-7, 0.25, 0.5, 0.999999, float(LARGEST)]) | st.floats(0, float(LARGEST), width=32),
)
def test_mass_zero_is_never_drawn(mass, uniform):
  mass = np.float32(mass)
  if mass.sum() < 1e-20:
    return
  token = int(from_mass(jnp.float32(uniform), jnp.asarray(mass)))
  assert mass[token] > 0


def test_ends_of_the_interval():
  mass = jnp.array([0.0, 1.0, 0.0, 1.0, 0.0])
  uniform = jnp.array([0.0, 0.5, LARGEST])
  assert from_mass(uniform, jnp.broadcast_to(mass, (3, 5))).tolist() == [1, 3, 3]


def test_rounding_error_of_a_large_vocabulary_stays_below_a_millionth():
  mass = np.float32(np.random.default_rng(4).dirichlet(np.ones(32128)))
  exact = np.cumsum(np.float64(mass)) / np.float64(mass).sum()
  uniform = np.float32(np.random.default_rng(5).uniform(size=256))
  token = np.asarray(jax.jit(jax.vmap(sampling.from_mass, (0, None)))(uniform, mass))
  before = np.where(token > 0, exact[token - 1], 0.0)
  assert (before - 1e-6 <= uniform).all() and (uniform <= exact[token] + 1e-6).all()


def test_from_law_is_from_mass_of_the_exponential():
  mass = np.float32([0.1, 0.0, 0.6, 0.3])
  with np.errstate(divide="ignore"):
    log_p = jnp.broadcast_to(jnp.log(mass), (50, 4))
  uniform = jnp.linspace(0, 0.999, 50)
  expected = from_mass(uniform, jnp.broadcast_to(jnp.asarray(mass), (50, 4)))
  assert sampling.from_law(uniform, log_p).tolist() == expected.tolist()


def test_uniforms_of_a_row_depend_on_its_key_alone():
  keys = jax.random.split(jax.random.key(3), 5)
  together = sampling.uniforms(keys, 4)
  for row in range(5):
    np.testing.assert_array_equal(sampling.uniforms(keys[row : row + 1], 4)[0], together[row])
  assert len(np.unique(together)) == 20
  assert float(together.min()) >= 0 and float(together.max()) < 1


def test_first_argmax():
  low = -jnp.inf
  x = jnp.array([[0.0, 2.0, 2.0], [1.0, 0.0, 0.0], [low, low, -5.0], [low, low, low], [0.0, -0.0, -1.0]])
  assert sampling.argmax(x).tolist() == np.argmax(np.asarray(x), -1).tolist()
