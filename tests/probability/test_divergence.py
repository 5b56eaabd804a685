"""Divergences against NumPy in float64, SciPy and the definitions of the paper."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.probability import divergence

V = 6
EPS = float(np.finfo(np.float32).eps)
OF_PROBABILITIES = ("overlap", "total_variation", "d_lk")
OF_LOGS = ("forward_kl", "reverse_kl", "jensen_shannon")
# One compiled program a function, instead of one for each of its operations.
compiled = types.SimpleNamespace(**{name: jax.jit(getattr(divergence, name)) for name in OF_PROBABILITIES + OF_LOGS})

exact = settings(deadline=None, derandomize=True, max_examples=50)
weights = st.lists(st.integers(0, 9), min_size=V, max_size=V).filter(any)


def law(row):
  """float32 probabilities from integer weights; zeros stay exact zeros."""
  return (np.asarray(row, np.float64) / np.sum(row)).astype(np.float32)


def random_laws(seed, shape, spread):
  logits = np.random.default_rng(seed).normal(size=shape) * spread
  return scipy.special.softmax(logits, axis=-1).astype(np.float32)


@pytest.mark.parametrize("spread", [1.0, 5.0, 20.0])
def test_probabilities_at_vocabulary_size_match_float64(spread):
  p, q = random_laws(0, (4, 32128), spread), random_laws(1, (4, 32128), spread)
  wide_p, wide_q = p.astype(np.float64), q.astype(np.float64)
  np.testing.assert_allclose(compiled.overlap(p, q), np.minimum(wide_p, wide_q).sum(-1), rtol=20 * EPS)
  np.testing.assert_allclose(compiled.total_variation(p, q), np.abs(wide_p - wide_q).sum(-1) / 2, rtol=20 * EPS)


@exact
@given(weights, weights)
def test_d_lk_is_definition_3_2_and_lemma_3_3(a, b):
  p, q = law(a), law(b)
  middle = (p.astype(np.float64) + q) / 2
  by_definition = np.abs(p - middle).sum()
  d = float(compiled.d_lk(p, q))
  assert d == pytest.approx(by_definition, abs=4 * EPS)
  assert d == pytest.approx(1 - float(compiled.overlap(p, q)), abs=4 * EPS)


@exact
@given(weights, weights)
def test_d_lk_is_a_distance_on_laws(a, b):
  p, q = law(a), law(b)
  d = float(compiled.d_lk(p, q))
  assert d == float(compiled.d_lk(q, p))
  assert 0 <= d <= 1 + 4 * EPS
  assert (d == 0) == np.array_equal(p, q)
  disjoint = not np.any((p > 0) & (q > 0))
  assert (d >= 1 - 4 * EPS) == disjoint
  assert (float(compiled.overlap(p, q)) == 0) == disjoint


def test_relative_precision_survives_at_both_ends():
  p = np.array([0.5, 0.5], np.float32)
  near = np.array([0.5 + 2**-20, 0.5 - 2**-20], np.float32)
  assert float(compiled.total_variation(p, near)) == 2**-20  # 1 - overlap would be 2^-20 plus or minus 6 %
  far_p, far_q = np.array([1.0, 1e-12], np.float32), np.array([0.0, 1.0], np.float32)
  assert float(compiled.overlap(far_p, far_q)) == pytest.approx(1e-12, rel=EPS)


def test_overlap_needs_no_normalisation():
  assert float(compiled.overlap(np.array([2.0, 3.0]), np.array([4.0, 1.0]))) == 3.0


@exact
@given(weights, weights)
def test_kullback_leibler_is_scipys(a, b):
  p, q = law(a), law(b)
  with np.errstate(divide="ignore"):
    log_p, log_q = np.log(p), np.log(q)
  forward = scipy.special.rel_entr(p.astype(np.float64), q.astype(np.float64)).sum()
  reverse = scipy.special.rel_entr(q.astype(np.float64), p.astype(np.float64)).sum()
  shannon = scipy.spatial.distance.jensenshannon(p.astype(np.float64), q.astype(np.float64)) ** 2
  np.testing.assert_allclose(compiled.forward_kl(log_p, log_q), forward, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(compiled.reverse_kl(log_p, log_q), reverse, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(compiled.jensen_shannon(log_p, log_q), shannon, rtol=1e-5, atol=1e-6)


@exact
@given(weights, weights)
def test_pinsker_ties_the_two_families(a, b):
  p, q = law(a), law(b)
  with np.errstate(divide="ignore"):
    log_p, log_q = np.log(p), np.log(q)
  assert 2 * float(compiled.total_variation(p, q)) ** 2 <= float(compiled.forward_kl(log_p, log_q)) + 1e-5
  assert float(compiled.jensen_shannon(log_p, log_q)) <= np.log(2) * float(compiled.total_variation(p, q)) + 1e-5


def test_kl_does_not_underflow_with_the_probability():
  log_q = np.array([0.0, -200.0], np.float32)  # exp(-200) is 0 in float32
  log_p = np.log(np.array([0.5, 0.5], np.float32))
  assert float(compiled.forward_kl(log_p, log_q)) == pytest.approx(100 - np.log(2), rel=1e-6)


@pytest.mark.parametrize("name", OF_LOGS)
def test_gradients_are_finite_where_a_token_is_impossible_in_both(name):
  mask = np.array([0.0, 0.0, -np.inf, -np.inf], np.float32)

  def loss(a, b):
    return getattr(divergence, name)(jax.nn.log_softmax(a + mask), jax.nn.log_softmax(b + mask))

  a, b = np.array([0.3, -1.0, 2.0, 0.0], np.float32), np.array([1.0, 0.2, 0.0, 5.0], np.float32)
  value, gradients = jax.jit(loss), jax.jit(jax.grad(loss, (0, 1)))(a, b)
  move = np.array([1e-2, 0, 0, 0], np.float32)
  differences = (value(a + move, b) - value(a - move, b), value(a, b + move) - value(a, b - move))
  for gradient, difference in zip(gradients, differences, strict=True):
    assert np.all(np.isfinite(gradient))
    assert float(gradient[0]) == pytest.approx(float(difference) / 2e-2, abs=1e-3)


def test_jensen_shannon_gradient_is_finite_on_different_supports():
  log_p = np.array([np.log(0.25), np.log(0.75), -np.inf], np.float32)
  loss = lambda x: compiled.jensen_shannon(log_p, jax.nn.log_softmax(x))
  gradient = jax.jit(jax.grad(loss))(np.zeros(3, np.float32))
  assert np.all(np.isfinite(gradient)) and float(gradient[2]) > 0


@pytest.mark.parametrize("name", OF_PROBABILITIES + OF_LOGS)
@pytest.mark.parametrize("side", [0, 1])
def test_nan_reaches_the_result(name, side):
  arguments = np.full((2, V), 0.5, np.float32)
  arguments[side, 1] = np.nan
  assert np.isnan(getattr(compiled, name)(*arguments))


@pytest.mark.parametrize("name", OF_PROBABILITIES + OF_LOGS)
def test_broadcasting_and_strict_promotion(name):
  p, q = random_laws(2, (3, 1, V), 1.0), random_laws(3, (2, V), 1.0)
  half = jnp.asarray(q, jnp.bfloat16)
  with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
    function = jax.jit(getattr(divergence, name))  # traced here, under the strict rules
    result, mixed = function(p, q), function(p, half)
  assert result.shape == mixed.shape == (3, 2) and result.dtype == mixed.dtype == jnp.float32
  one_by_one = [[float(getattr(compiled, name)(p[i, 0], q[j])) for j in range(2)] for i in range(3)]
  np.testing.assert_allclose(result, one_by_one, rtol=1e-5, atol=1e-7)
  np.testing.assert_array_equal(mixed, function(p, half.astype(jnp.float32)))


@pytest.mark.parametrize("name", OF_PROBABILITIES + OF_LOGS)
@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        (np.ones((2, 32128)), np.ones((2, 32100)), "V = 32128, found V = 32100"),
        (np.ones((2, 4)), np.ones((3, 4)), r"broadcasts with \(2, 4\), found \(3, 4\)"),
        (np.ones(4, np.int32), np.ones(4), "floating dtype, found int32"),
        (np.ones(4), np.float32(1.0), r"shape \[.., V\] with V of at least 1, found \(\)"),
        (np.ones((2, 0)), np.ones((2, 0)), r"found \(2, 0\)"),
    ],
)
def test_the_door_says_what_it_found(name, p, q, message):
  with pytest.raises(ValueError, match=message):
    getattr(divergence, name)(p, q)
