"""What a speculative step gains, and how many tokens to draft.

c is the time of one draft call over the time of one target call. v is the time
of scoring gamma + 1 tokens over the time of scoring one; the paper takes
v = 1. gamma = 0 is plain decoding, for which v is 1 by definition. Computed
with NumPy in float64, as `specdec.theory.tokens`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.tokens import as_counts, as_numbers, expected_tokens, plain

ScoringTime = ArrayLike | Callable[[int], float]


def walltime_factor(alpha: ArrayLike, gamma: ArrayLike, c: ArrayLike, v: ArrayLike = 1.0) -> float | np.ndarray:
  """Expected speed-up over plain decoding: Theorem 3.8, with a price for scoring.

  `E / (gamma c + v)`, `E = (1 - alpha^(gamma + 1)) / (1 - alpha)`; 1 at
  gamma = 0, whatever v is given there. It is the limit for long generations.

  Args:
    alpha: mean acceptance probability, in [0, 1].
    gamma: drafted tokens per step, integers of at least 0.
    c: draft time / target time, at least 0.
    v: time of scoring gamma + 1 tokens / time of scoring one, above 0.

  Returns:
    The factor, above 1 for a gain, of the broadcast shape.

  Raises:
    ValueError: an argument outside its range.

  Example:
    >>> round(walltime_factor(0.75, 7, 0.02), 2)
    3.16
    >>> round(walltime_factor(0.75, 7, 0.02, v=1.5), 2)
    2.19

  Source: Leviathan et al. 2023, Theorem 3.8 (v = 1).
  """
  tokens = expected_tokens(alpha, gamma)
  gamma, c, v = as_counts("gamma", gamma), as_numbers("c", c, 0.0), _positive("v", v)
  return plain(tokens / (gamma * c + np.where(gamma == 0, 1.0, v)))


def operations_factor(alpha: ArrayLike, gamma: ArrayLike, c_hat: ArrayLike) -> float | np.ndarray:
  """Expected growth of the arithmetic operations per token: Theorem 3.11.

  `(1 - alpha) (gamma c_hat + gamma + 1) / (1 - alpha^(gamma + 1))`, that is
  `(gamma c_hat + gamma + 1) / E`.

  Args:
    alpha: mean acceptance probability, in [0, 1].
    gamma: drafted tokens per step, integers of at least 0.
    c_hat: draft operations per token / target operations per token, at least 0.

  Returns:
    The factor, at least 1, of the broadcast shape.

  Raises:
    ValueError: an argument outside its range.

  Example:
    >>> round(operations_factor(0.8, 5, 0.0), 2)
    1.63

  Source: Leviathan et al. 2023, Theorem 3.11.
  """
  tokens = expected_tokens(alpha, gamma)
  gamma, c_hat = as_counts("gamma", gamma), as_numbers("c_hat", c_hat, 0.0)
  return plain((gamma * c_hat + gamma + 1.0) / tokens)


def improves(alpha: ArrayLike, c: ArrayLike) -> bool | np.ndarray:
  """Whether some gamma makes decoding faster, at v = 1: `alpha > c`.

  The condition is exact: `E - 1 <= gamma alpha`, so that no gamma helps when
  alpha <= c, and gamma = 1 helps when alpha > c.

  Args:
    alpha: mean acceptance probability, in [0, 1].
    c: draft time / target time, at least 0.

  Returns:
    A bool, or an array of them, of the broadcast shape.

  Raises:
    ValueError: an argument outside its range.

  Example:
    >>> improves(0.2, [0.1, 0.2]).tolist()
    [True, False]

  Source: Leviathan et al. 2023, Corollary 3.9.
  """
  return plain(as_numbers("alpha", alpha, 0.0, 1.0) > as_numbers("c", c, 0.0))


def improvement_bound(alpha: ArrayLike, c: ArrayLike, v: ArrayLike = 1.0) -> float | np.ndarray:
  """What the best gamma gives at least: the factor of gamma = 1.

  `(1 + alpha) / (c + v)`, in the paper `(1 + alpha) / (1 + c)`. A gain when
  alpha > c and v = 1; below 1 it says nothing, as gamma = 0 gives 1.

  Args:
    alpha: mean acceptance probability, in [0, 1].
    c: draft time / target time, at least 0.
    v: time of scoring 2 tokens / time of scoring one, above 0.

  Returns:
    The factor, of the broadcast shape.

  Raises:
    ValueError: an argument outside its range.

  Example:
    >>> improvement_bound(0.5, 0.2)
    1.25

  Source: Leviathan et al. 2023, Corollary 3.9.
  """
  return walltime_factor(alpha, 1, c, v)


class BestGamma(NamedTuple):
  """The best draft length and what it gives.

  Attributes:
    gamma: drafted tokens per step; 0 where no draft length helps.
    factor: `walltime_factor` there, at least 1.
  """

  gamma: int | np.ndarray
  factor: float | np.ndarray


def best_gamma(alpha: ArrayLike, c: ArrayLike, v: ScoringTime = 1.0, max_gamma: int | None = None) -> BestGamma:
  """The gamma of 0 .. max_gamma with the largest `walltime_factor`.

  Every length is tried, as a measured v need not be smooth. Of lengths that
  are equal in float64 the smallest is taken. At c = 0 and v = 1 the factor
  rises without end, and the answer is only what `max_gamma` and float64
  resolve.

  Args:
    alpha: mean acceptance probability, in [0, 1].
    c: draft time / target time, at least 0.
    v: a number for all gamma >= 1; or a function of one integer gamma >= 1;
      or an array [.., max_gamma + 1] with v at gamma on its last axis, which
      starts with v = 1 at gamma = 0. Leading axes broadcast with alpha and c.
    max_gamma: the longest draft to try; by default 256, or what the array holds.

  Returns:
    `BestGamma`, of the broadcast shape of alpha and c.

  Raises:
    ValueError: an argument outside its range, or an array v of another length
      than max_gamma + 1 or that does not start with 1.

  Example:
    >>> best_gamma(0.8, 0.05).gamma
    8
    >>> best_gamma(0.8, 0.05, v=lambda gamma: 1 + 0.1 * gamma).gamma
    5
    >>> best_gamma(0.8, 0.05, v=[1.0, 1.0, 1.0, 2.0]).gamma
    2

  Source: Leviathan et al. 2023, section 3.5 and Figure 3 (v = 1).
  """
  if max_gamma is None:
    max_gamma = 256 if callable(v) or np.ndim(v) == 0 else np.shape(v)[-1] - 1
  gammas = np.arange(as_counts("max_gamma", max_gamma).item() + 1)
  if callable(v):
    v = [1.0] + [v(int(gamma)) for gamma in gammas[1:]]
  elif np.ndim(v) == 0:
    v = np.where(gammas == 0, 1.0, v)
  v = _positive("v", v)
  if v.shape[-1] != gammas.size:
    raise ValueError(f"v: expected max_gamma + 1 = {gammas.size} values, found {v.shape[-1]}.")
  if np.any(v[..., 0] != 1.0):
    raise ValueError(f"v: expected 1 at gamma = 0, its first value, found {v[..., 0].flat[0]:g}.")
  alpha, c = as_numbers("alpha", alpha, 0.0, 1.0), as_numbers("c", c, 0.0)
  factors = np.asarray(walltime_factor(alpha[..., None], gammas, c[..., None], v))
  best = np.argmax(factors, axis=-1)
  return BestGamma(plain(best), plain(np.take_along_axis(factors, best[..., None], axis=-1)[..., 0]))


def oracle_factor(alpha: ArrayLike, c: ArrayLike = 0.0) -> float | np.ndarray:
  """Expected speed-up when an oracle drafts only what will be accepted, at v = 1.

  `1 / (1 - alpha + alpha c)`. At c = 0 it is `1 / (1 - alpha)`: the mean
  tokens of a step under the oracle, and the bound on `walltime_factor` for
  every gamma and c. For c > 0 the price of the n drafted tokens is added,
  `E[n] = alpha / (1 - alpha)`; that step is not printed in the paper.

  Args:
    alpha: mean acceptance probability, in [0, 1].
    c: draft time / target time, at least 0.

  Returns:
    The factor, of the broadcast shape; inf at alpha = 1, c = 0.

  Raises:
    ValueError: an argument outside its range.

  Example:
    >>> oracle_factor(0.75)
    4.0

  Source: Leviathan et al. 2023, section 3.5.
  """
  alpha, c = as_numbers("alpha", alpha, 0.0, 1.0), as_numbers("c", c, 0.0)
  cost = (1.0 - alpha) + alpha * c
  return plain(np.where(cost > 0.0, 1.0 / np.where(cost > 0.0, cost, 1.0), np.inf))


def implied_c(factor: ArrayLike, alpha: ArrayLike, gamma: ArrayLike, v: ArrayLike = 1.0) -> float | np.ndarray:
  """The c at which `walltime_factor` gives a measured speed-up.

  `c = (E / factor - v) / gamma`.

  Args:
    factor: measured speed-up, above 0.
    alpha: mean acceptance probability, in [0, 1].
    gamma: drafted tokens per step, integers of at least 1.
    v: time of scoring gamma + 1 tokens / time of scoring one, above 0.

  Returns:
    c, of the broadcast shape. Negative where even a free draft would be slower
    than was measured: alpha, v or the baseline then is not what was run.

  Raises:
    ValueError: an argument outside its range.

  Example:
    >>> round(implied_c(2.5, 0.82, 7), 2)
    0.11

  Source: Leviathan et al. 2023, Theorem 3.8 solved for c.
  """
  factor, v = _positive("factor", factor), _positive("v", v)
  gamma = as_counts("gamma", gamma, 1)
  return plain((expected_tokens(alpha, gamma) / factor - v) / gamma)


def _positive(name: str, value: ArrayLike) -> np.ndarray:
  numbers = as_numbers(name, value, 0.0)
  if np.any(numbers == 0.0):
    raise ValueError(f"{name}: expected numbers above 0, found 0.")
  return numbers
