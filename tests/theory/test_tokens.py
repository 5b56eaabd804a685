"""Tokens per step: Eq. 1 and its law, against enumeration in exact arithmetic."""

import itertools
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.theory import tokens

exact = settings(deadline=None, derandomize=True, max_examples=100)
alphas_in_range = st.floats(0.0, 1.0)
gammas_in_range = st.integers(0, 300)


def enumerated_law(alphas):
  """Law of the accepted tokens: every pattern of accept and reject, cut at its first reject."""
  law = [0] * (len(alphas) + 1)
  for pattern in itertools.product((True, False), repeat=len(alphas)):
    probability = Fraction(1)
    for accepted, alpha in zip(pattern, alphas, strict=True):
      probability *= alpha if accepted else 1 - alpha
    law[(*pattern, False).index(False)] += probability
  return law


def enumerated_algorithm_1(p, q, gamma):
  """Mean tokens of a step over every drafted sequence, the accept probabilities taken as Algorithm 1 has them."""
  mean = Fraction(0)
  for draft in itertools.product(range(len(p)), repeat=gamma):
    drawn, reached, length = Fraction(1), Fraction(1), Fraction(1)
    for x in draft:
      drawn *= q[x]
      reached *= min(Fraction(1), p[x] / q[x])
      length += reached
    mean += drawn * length
  return mean


@pytest.mark.parametrize("gamma", [0, 1, 3, 5, 7, 10])
def test_figure_2_curve_is_the_mean_over_all_patterns(gamma):
  alphas = np.linspace(0.0, 1.0, 41)
  patterns = np.array(list(itertools.product((1, 0), repeat=gamma)), int).reshape(2**gamma, gamma)
  reached = np.cumprod(patterns, axis=1).sum(axis=1)
  probability = np.prod(np.where(patterns == 1, alphas[:, None, None], 1 - alphas[:, None, None]), axis=-1)
  curve = tokens.expected_tokens(alphas, gamma)
  np.testing.assert_allclose(curve, probability @ (reached + 1), rtol=1e-12)
  assert np.all(np.diff(curve) > 0) or gamma == 0


def test_eq_1_is_algorithm_1_with_alpha_from_the_laws():
  p = [Fraction(x, 10) for x in (5, 3, 2)]
  q = [Fraction(x, 10) for x in (2, 2, 6)]
  alpha = float(sum(min(a, b) for a, b in zip(p, q, strict=True)))
  for gamma in range(6):
    assert tokens.expected_tokens(alpha, gamma) == pytest.approx(float(enumerated_algorithm_1(p, q, gamma)), rel=1e-14)


def test_eq_1_is_exact_at_its_edges():
  for gamma in (0, 1, 7, 1000):
    assert tokens.expected_tokens(0.0, gamma) == 1.0
    assert tokens.expected_tokens(1.0, gamma) == gamma + 1
  assert np.all(tokens.expected_tokens(np.linspace(0, 1, 101), 0) == 1.0)


@pytest.mark.parametrize("gamma", [1, 2, 17, 1000])
@pytest.mark.parametrize("exponent", [1, 10, 30, 52])
@pytest.mark.parametrize("side", ["near 0", "near 1"])
def test_eq_1_is_accurate_everywhere(gamma, exponent, side):
  small = Fraction(1, 2**exponent)
  alpha = small if side == "near 0" else 1 - small
  expected = (1 - alpha ** (gamma + 1)) / (1 - alpha)
  assert tokens.expected_tokens(float(alpha), gamma) == pytest.approx(float(expected), rel=1e-14)


@exact
@given(alphas_in_range, alphas_in_range, gammas_in_range)
def test_eq_1_bounds_and_monotonicity(a, b, gamma):
  low, high = sorted((a, b))
  at_low, at_high = tokens.expected_tokens(low, gamma), tokens.expected_tokens(high, gamma)
  slack = 1 + 1e-13
  assert 1 <= at_low <= min(gamma + 1, at_high * slack)
  assert at_low <= tokens.expected_tokens(low, gamma + 1) * slack
  assert at_low * (1 - low) <= slack  # below the oracle's 1 / (1 - alpha)
  assert tokens.expected_tokens(low, gamma + 1) == pytest.approx(1 + low * at_low, rel=1e-12)


@exact
@given(st.lists(st.integers(0, 8), max_size=6))
def test_position_dependent_forms_are_the_enumeration(eighths):
  fractions = [Fraction(x, 8) for x in eighths]
  law = enumerated_law(fractions)
  alphas = np.array([float(x) for x in fractions])
  np.testing.assert_allclose(tokens.accepted_law_by_position(alphas), [float(x) for x in law], atol=1e-15)
  mean = sum(((n + 1) * x for n, x in enumerate(law)), Fraction(0))
  assert tokens.expected_tokens_by_position(alphas) == pytest.approx(float(mean), rel=1e-14)


@pytest.mark.parametrize("gamma", [0, 1, 4, 7])
@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(1, 3), Fraction(3, 4), Fraction(1)])
def test_capped_geometric_law_is_the_enumeration(alpha, gamma):
  law = tokens.accepted_law(float(alpha), gamma)
  np.testing.assert_allclose(law, [float(x) for x in enumerated_law([alpha] * gamma)], atol=1e-15)
  assert law @ np.arange(1, gamma + 2) == pytest.approx(tokens.expected_tokens(float(alpha), gamma), rel=1e-14)


def test_prefix_products_are_exact_where_eq_1_is_not():
  # The second token's acceptance depends on the first: beta is 1 after token 0, 1/4 after token 1.
  p, q = [[Fraction(1, 2)] * 2] * 2, [[Fraction(1, 2)] * 2, [Fraction(7, 8), Fraction(1, 8)]]
  first_p, first_q = [Fraction(1, 4), Fraction(3, 4)], [Fraction(3, 4), Fraction(1, 4)]
  accept_first = [min(a, b) for a, b in zip(first_p, first_q, strict=True)]  # mass that draws x and accepts it
  accept_second = [sum(min(a, b) for a, b in zip(p[x], q[x], strict=True)) for x in (0, 1)]
  both = sum(a * b for a, b in zip(accept_first, accept_second, strict=True))
  alphas = [float(sum(accept_first)), float(both / sum(accept_first))]
  truth = float(1 + sum(accept_first) + both)
  assert tokens.expected_tokens_by_position(alphas) == pytest.approx(truth, rel=1e-15)
  assert abs(tokens.expected_tokens(np.mean(alphas), 2) - truth) > 0.05


def test_capped_geometric_law_simulated():
  rng = np.random.default_rng(0)
  steps, alpha, gamma = 50_000, 0.7, 5
  accepted = np.cumprod(rng.random((steps, gamma)) < alpha, axis=1).sum(axis=1)
  found = np.bincount(accepted, minlength=gamma + 1) / steps
  law = tokens.accepted_law(alpha, gamma)
  assert np.all(np.abs(found - law) < 4 * np.sqrt(law * (1 - law) / steps))


def test_arrays_broadcast_and_scalars_are_plain():
  table = tokens.expected_tokens(jnp.array([0.25, 0.5, 1.0])[:, None], np.arange(4))
  assert isinstance(table, np.ndarray) and table.dtype == np.float64
  np.testing.assert_array_equal(table[2], [1, 2, 3, 4])
  np.testing.assert_allclose(table[1], [1, 1.5, 1.75, 1.875], rtol=1e-15)
  assert type(tokens.expected_tokens(jnp.float32(0.5), 3)) is float
  assert type(tokens.expected_tokens_by_position([0.5])) is float
  assert tokens.accepted_law(np.full((2, 3), 0.5), 4).shape == (2, 3, 5)
  assert tokens.expected_tokens_by_position(np.full((2, 3), 0.5)).shape == (2,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tokens.expected_tokens(1.5, 3), r"alpha: expected finite numbers in \[0, 1\], found 1.5"),
        (lambda: tokens.expected_tokens([0.5, np.nan], 3), r"alpha: .*found nan"),
        (lambda: tokens.expected_tokens("0.5", 3), "alpha: expected real numbers, found dtype"),
        (lambda: tokens.expected_tokens(True, 3), "alpha: expected real numbers, found dtype bool"),
        (lambda: tokens.expected_tokens(0.5, -1), "gamma: expected integers of at least 0, found -1"),
        (lambda: tokens.expected_tokens(0.5, 3.0), "gamma: expected integers, found dtype float64"),
        (lambda: tokens.accepted_law(0.5, [1, 2]), r"gamma: expected one integer, found shape \(2,\)"),
        (lambda: tokens.accepted_law_by_position(0.5), r"alphas: expected shape \[.., G\], found a scalar"),
        (lambda: tokens.expected_tokens_by_position([0.5, -0.5]), "alphas: .*found -0.5"),
    ],
)
def test_the_door_says_what_it_found(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_a_count_that_does_not_fit_is_refused():
  """As int64 it would be -1, and no token at all."""
  with pytest.raises(ValueError, match=r"gamma: expected integers below 2\*\*63"):
    tokens.expected_tokens(1.0, np.uint64(2**64 - 1))
