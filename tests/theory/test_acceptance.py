"""Acceptance from two laws, against exact fractions and a simulation of the accept test."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.probability import divergence
from specdec.theory import acceptance

V = 5
CLOSE = 1e-6  # a few units of float32 on a sum of V terms of at most 1

# One compiled program a function, instead of one for each of its operations.
beta, alpha, beta_argmax, beta_rejection, d_lk = map(
    jax.jit,
    (acceptance.beta, acceptance.alpha, acceptance.beta_argmax, acceptance.beta_rejection, divergence.d_lk),
)

exact = settings(deadline=None, derandomize=True, max_examples=50)
weights = st.lists(st.integers(0, 9), min_size=V, max_size=V).filter(any)
leniences = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])


def law(row):
  return [Fraction(x, sum(row)) for x in row]


def floats(fractions):
  return np.array([float(x) for x in fractions], np.float32)


def accept_by_rule(p, q, lenience):
  """P(accept) as Algorithm 1 says it: draw x ~ q, accept with min(1, p(x) / (l q(x)))."""
  accept = lambda a, b: Fraction(a > 0) if lenience == 0 else min(Fraction(1), a / (Fraction(lenience) * b))
  return sum((b * accept(a, b) for a, b in zip(p, q, strict=True) if b > 0), Fraction(0))


@exact
@given(weights, weights, leniences)
def test_beta_is_the_acceptance_of_algorithm_1(a, b, lenience):
  p, q = law(a), law(b)
  found = float(beta(floats(p), floats(q), lenience))
  assert found == pytest.approx(float(accept_by_rule(p, q, lenience)), abs=CLOSE)
  assert 0 <= found <= 1


@exact
@given(weights, weights)
def test_beta_is_one_minus_d_lk_and_symmetric(a, b):
  p, q = floats(law(a)), floats(law(b))
  found = float(beta(p, q))
  assert found == pytest.approx(1 - float(d_lk(p, q)), abs=CLOSE)
  assert found == float(beta(q, p))
  residual = np.maximum(p.astype(np.float64) - q, 0).sum()  # A.1: its normaliser
  assert residual == pytest.approx(1 - found, abs=CLOSE)


@exact
@given(weights, weights)
def test_lenience_only_raises_acceptance(a, b):
  p, q = floats(law(a)), floats(law(b))
  falling = np.array([1.0, 0.5, 0.3, 0.1, 1e-6, 0.0])
  found = np.asarray(beta(p, q, falling))
  assert found.shape == (6,)
  assert np.all(np.diff(found) >= -CLOSE)
  assert found[-2] == pytest.approx(found[-1], abs=CLOSE)  # l = 0 is the limit


def test_accept_test_simulated():
  rng = np.random.default_rng(0)
  p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.2, 0.2, 0.4])
  trials = 100_000
  x, r = rng.choice(4, trials, p=q), rng.random(trials)
  for lenience in (1.0, 0.5, 0.3):
    accepted = r <= p[x] / (lenience * q[x])
    error = np.sqrt(accepted.var() / trials)
    assert abs(accepted.mean() - float(beta(p, q, lenience))) < 4 * error
  plain = r <= p[x] / ((p / q).max() * q[x])
  assert abs(plain.mean() - float(beta_rejection(p, q))) < 4 * np.sqrt(plain.var() / trials)


@exact
@given(weights, weights)
def test_plain_rejection_is_a_2_and_never_better(a, b):
  p, q = law(a), law(b)
  smallest = min(y / x for x, y in zip(p, q, strict=True) if x > 0)
  found = float(beta_rejection(floats(p), floats(q)))
  assert found == pytest.approx(float(sum(x * smallest for x in p)), abs=CLOSE)
  assert 0 <= found <= float(beta(floats(p), floats(q))) + CLOSE


def test_alpha_is_the_mean_over_prefixes_that_count():
  rng = np.random.default_rng(1)
  p, q = rng.dirichlet(np.ones(V), (3, 4)), rng.dirichlet(np.ones(V), (3, 4))
  betas = np.minimum(p, q).sum(-1)
  mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
  assert float(alpha(p, q)) == pytest.approx(betas.mean(), abs=CLOSE)
  assert float(alpha(p, q, weights=mask)) == pytest.approx(betas[mask == 1].mean(), abs=CLOSE)
  assert float(alpha(p, q, 0.5)) == pytest.approx(np.minimum(p / 0.5, q).sum(-1).mean(), abs=CLOSE)
  assert float(alpha(p[0, 0], q[0, 0])) == pytest.approx(betas[0, 0], abs=CLOSE)
  assert np.isnan(alpha(p, q, weights=np.zeros((3, 4))))


def test_equal_laws_are_always_accepted_at_vocabulary_size():
  logits = np.random.default_rng(2).normal(size=(16, 32128)).astype(np.float32) * 3
  p = jax.nn.softmax(logits)
  betas = beta(p, p)
  assert float(betas.max()) <= 1 and float(betas.min()) > 1 - CLOSE
  assert float(alpha(p, p)) <= 1


@pytest.mark.parametrize(
    ("lenience", "expected"),
    [(1.0, [0, 1, 1, 0]), (0.6, [1, 1, 1, 0]), (0.3, [1, 1, 1, 1]), (0.0, [1, 1, 1, 1])],
)
def test_argmax_rule_with_lenience(lenience, expected):
  # Rows: the draft's argmax is the target's second token (p = .3 of .5); the same token; a tie of p; its last token.
  p = np.array([[0.3, 0.5, 0.2], [0.3, 0.5, 0.2], [0.4, 0.4, 0.2], [0.3, 0.5, 0.2]])
  q = np.array([[0.4, 0.35, 0.25], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
  assert beta_argmax(p, q, lenience).tolist() == expected


def test_argmax_rule_has_the_misprint_corrected():
  # As printed, p(x) <= l max(p) accepts everything at l = 1; no lenience may mean exact greedy decoding.
  p = np.eye(V, dtype=np.float32) * 0.6 + 0.08
  draft = np.roll(p, 1, axis=-1)
  assert beta_argmax(p, draft).tolist() == [0.0] * V
  assert beta_argmax(p, p).tolist() == [1.0] * V


@pytest.mark.parametrize("function", [acceptance.beta, acceptance.alpha, acceptance.beta_argmax])
def test_traced_lenience_compiles_once_under_strict_promotion(function):
  traces = []

  @jax.jit
  def run(p, q, lenience):
    traces.append(1)
    return function(p, q, lenience)

  rng = np.random.default_rng(3)
  p, q = (jnp.asarray(rng.dirichlet(np.ones(V), (2, 3)), jnp.bfloat16) for _ in range(2))
  with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
    found = [run(p, q, np.float32(lenience)) for lenience in (1.0, 0.5, 0.0)]
  assert len(traces) == 1
  for lenience, one in zip((1.0, 0.5, 0.0), found, strict=True):
    np.testing.assert_allclose(one, function(p, q, lenience), atol=CLOSE)
    assert one.dtype == jnp.float32


def test_one_lenience_a_row():
  p, q = np.random.default_rng(4).dirichlet(np.ones(V), (2, 2, 3))
  with jax.numpy_rank_promotion("raise"):
    per_row = acceptance.beta(p, q, np.array([[0.5], [1.0]]))
  expected = [np.minimum(p[0] / 0.5, q[0]).sum(-1), np.minimum(p[1], q[1]).sum(-1)]
  np.testing.assert_allclose(per_row, expected, atol=CLOSE)


def test_nan_reaches_the_result():
  bad, good = np.array([np.nan, 0.5]), np.array([0.5, 0.5])
  for p, q in ((bad, good), (good, bad)):
    assert np.isnan(beta(p, q)) and np.isnan(beta_rejection(p, q))
    assert np.isnan(alpha(p, q, 0.5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: acceptance.beta(p, p, 1.5), r"in \[0, 1\], found 1.5"),
        (lambda p: acceptance.beta(p, p, -0.1), r"in \[0, 1\], found -0.1"),
        (lambda p: acceptance.beta_argmax(p, p, float("nan")), r"in \[0, 1\], found nan"),
        (lambda p: acceptance.beta(p, p, "0.5"), "found '0.5'"),
        (lambda p: acceptance.beta(p, p, np.ones(3)), r"broadcasts with \(2,\), found \(3,\)"),
        (lambda p: acceptance.beta(p, p[:, :-1]), "V = 5, found V = 4"),
        (lambda p: acceptance.beta_rejection(p, p[:, :-1]), "V = 5, found V = 4"),
        (lambda p: acceptance.beta_argmax(p, p[:, :-1]), "V = 5, found V = 4"),
        (lambda p: acceptance.alpha(p, p, weights=np.ones(3)), r"one weight a prefix, \(2,\), found \(3,\)"),
        (lambda p: acceptance.beta(np.ones(V, int), p), "floating dtype, found int"),
    ],
)
def test_the_door_says_what_it_found(call, message):
  with pytest.raises(ValueError, match=message):
    call(np.full((2, V), 0.2))


def test_alpha_does_not_read_padding():
  """0 * NaN is NaN: a law on padding may be anything."""
  p = jnp.array([[0.5, 0.5], [jnp.nan, jnp.nan]])
  assert acceptance.alpha(p, jnp.array([[0.75, 0.25], [0.5, 0.5]]), weights=jnp.array([1.0, 0.0])) == 0.75
