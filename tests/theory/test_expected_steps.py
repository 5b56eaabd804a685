"""`theory.tokens.expected_steps`: steps of finite outputs, against simulation and in closed cases."""

import numpy as np
import pytest

from specdec.theory import tokens


def simulated(alpha, gamma, length, runs, seed):
  """Steps [runs] of outputs of `length` tokens, each drafted token accepted with probability alpha."""
  rng = np.random.default_rng(seed)
  left, steps = np.full(runs, length), np.zeros(runs, int)
  while (left > 0).any():
    accepted = np.cumprod(rng.random((runs, gamma)) < alpha, axis=1).sum(axis=1)
    steps += left > 0
    left -= accepted + 1
  return steps


@pytest.mark.parametrize("length", [1, 2, 5, 13, 60])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.2, 1), (0.6, 3), (0.8, 7), (0.95, 4)])
def test_simulation(alpha, gamma, length):
  runs = 20_000
  steps = simulated(alpha, gamma, length, runs, seed=length)
  standard_error = steps.std() / np.sqrt(runs)
  assert abs(tokens.expected_steps(alpha, gamma, length)[length] - steps.mean()) <= 4 * standard_error


@pytest.mark.parametrize("gamma", [0, 1, 3, 7])
def test_closed_cases(gamma):
  np.testing.assert_array_equal(tokens.expected_steps(0.0, gamma, 9), np.arange(10))
  np.testing.assert_array_equal(tokens.expected_steps(1.0, gamma, 20), -(-np.arange(21) // (gamma + 1)))


@pytest.mark.parametrize(("alpha", "gamma"), [(0.3, 2), (0.8, 5)])
def test_long_outputs_tend_to_eq_1(alpha, gamma):
  steps = tokens.expected_steps(alpha, gamma, 5000)
  rate = tokens.expected_tokens(alpha, gamma)
  assert (steps[-1] - steps[-1001]) / 1000 == pytest.approx(1 / rate, rel=1e-6)
  assert (steps[1:] >= np.arange(1, 5001) / rate).all(), "an end within a step only costs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1.5, 3, 4), "alpha: "), ((0.5, -1, 4), "gamma: "), ((0.5, 3, -1), "length: "), ((0.5, 3, 2.0), "length: ")],
)
def test_wrong_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    tokens.expected_steps(*arguments)
