"""How many tokens one speculative step yields, under the i.i.d. model.

Each drafted token is accepted with probability alpha, independently, up to the
first rejection; the target then adds one token of its own. So a step yields
between 1 and gamma + 1 tokens. Computed with NumPy in float64: NumPy and
(concrete) JAX arrays broadcast, plain numbers give a plain float.

The expectation is also the factor by which reads of the target's weights and
of its key-value cache drop (Leviathan et al. 2023, section 3.4).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def as_numbers(name: str, value: ArrayLike, low: float = -np.inf, high: float = np.inf) -> np.ndarray:
  """The door of a real argument: finite float64 in [low, high], or a `ValueError` that says what was found."""
  found = np.asarray(value)
  if found.dtype.kind not in "fiu":
    raise ValueError(f"{name}: expected real numbers, found dtype {found.dtype}.")
  numbers = found.astype(np.float64)
  wrong = ~(np.isfinite(numbers) & (numbers >= low) & (numbers <= high))
  if np.any(wrong):
    raise ValueError(f"{name}: expected finite numbers in [{low:g}, {high:g}], found {numbers[wrong].flat[0]:g}.")
  return numbers


def as_counts(name: str, value: ArrayLike, low: int = 0) -> np.ndarray:
  """The door of a count: int64 of at least `low`, or a `ValueError` that says what was found."""
  found = np.asarray(value)
  if found.dtype.kind not in "iu":
    raise ValueError(f"{name}: expected integers, found dtype {found.dtype}.")
  if np.any(found < low):
    raise ValueError(f"{name}: expected integers of at least {low}, found {found[found < low].flat[0]}.")
  if np.any(found > np.iinfo(np.int64).max):
    raise ValueError(f"{name}: expected integers below 2**63, found {found.max()}.")
  return found.astype(np.int64)


def plain(result: Any) -> Any:
  """A Python number for a scalar result, the array itself otherwise."""
  result = np.asarray(result)
  return result.item() if result.ndim == 0 else result


def expected_tokens(alpha: ArrayLike, gamma: ArrayLike) -> float | np.ndarray:
  """Mean tokens of one step: Eq. 1.

  `E = (1 - alpha^(gamma + 1)) / (1 - alpha)`, which is gamma + 1 at alpha = 1;
  evaluated as `-expm1((gamma + 1) log(alpha)) / (1 - alpha)`, accurate to a
  few units in the last place for all alpha and gamma.

  Args:
    alpha: mean acceptance probability, in [0, 1].
    gamma: drafted tokens per step, integers of at least 0.

  Returns:
    Tokens, in [1, gamma + 1], of the broadcast shape.

  Raises:
    ValueError: alpha outside [0, 1], gamma negative or not an integer.

  Example:
    >>> expected_tokens(0.5, 2)
    1.75
    >>> expected_tokens([0.0, 1.0], 7).tolist()
    [1.0, 8.0]

  Source: Leviathan et al. 2023, Eq. 1.
  """
  alpha, gamma = as_numbers("alpha", alpha, 0.0, 1.0), as_counts("gamma", gamma)
  count = gamma + 1.0
  inside = (alpha > 0.0) & (alpha < 1.0)
  safe = np.where(inside, alpha, 0.5)
  total = -np.expm1(count * np.log(safe)) / (1.0 - safe)
  total = np.where(alpha == 1.0, count, np.where(inside, total, 1.0))
  return plain(np.clip(total, 1.0, count))  # the quotient rounds, and is exactly 1 at gamma = 0 only so


def expected_tokens_by_position(alphas: ArrayLike) -> float | np.ndarray:
  """Mean tokens of one step when acceptance depends on the position.

  `E = 1 + sum_{i=1..gamma} prod_{j<=i} alpha_j`, exact for any process of
  which alpha_j is the probability that token j is accepted given that tokens
  1 .. j-1 were. With all alpha_j equal it is Eq. 1.

  Args:
    alphas: [.., G], each in [0, 1]; G = 0 drafts nothing.

  Returns:
    [..] tokens, in [1, G + 1].

  Raises:
    ValueError: a value outside [0, 1], or a scalar.

  Example:
    >>> expected_tokens_by_position([0.5, 0.25])
    1.625

  Source: Leviathan et al. 2023, the sum that Eq. 1 closes.
  """
  alphas = _positions(alphas)
  return plain(1.0 + np.cumprod(alphas, axis=-1).sum(axis=-1))


def accepted_law(alpha: ArrayLike, gamma: int) -> np.ndarray:
  """Law of the number n of accepted tokens: a geometric law capped at gamma.

  `P(n = k) = alpha^k (1 - alpha)` for k < gamma, `P(n = gamma) = alpha^gamma`.

  Args:
    alpha: [..] mean acceptance probability, in [0, 1].
    gamma: drafted tokens per step, one integer of at least 0.

  Returns:
    [.., gamma + 1] probabilities of n = 0 .. gamma; the step yields n + 1.

  Raises:
    ValueError: alpha outside [0, 1], gamma negative or not one integer.

  Example:
    >>> accepted_law(0.5, 2).tolist()
    [0.5, 0.25, 0.25]

  Source: Leviathan et al. 2023, section 3.1.
  """
  alpha, count = as_numbers("alpha", alpha, 0.0, 1.0), as_counts("gamma", gamma)
  if count.ndim:
    raise ValueError(f"gamma: expected one integer, found shape {count.shape}.")
  return accepted_law_by_position(np.broadcast_to(alpha[..., None], (*alpha.shape, int(count))))


def accepted_law_by_position(alphas: ArrayLike) -> np.ndarray:
  """Law of the number n of accepted tokens when acceptance depends on the position.

  `P(n = k) = (1 - alpha_{k+1}) prod_{j<=k} alpha_j`, with alpha_{G+1} = 0.

  Args:
    alphas: [.., G], each in [0, 1], conditional on the positions before.

  Returns:
    [.., G + 1] probabilities of n = 0 .. G.

  Raises:
    ValueError: a value outside [0, 1], or a scalar.

  Example:
    >>> accepted_law_by_position([0.5, 0.25]).tolist()
    [0.5, 0.375, 0.125]

  Source: Leviathan et al. 2023, section 3.1, before the i.i.d. assumption.
  """
  alphas = _positions(alphas)
  edge = [(0, 0)] * (alphas.ndim - 1)
  reached = np.pad(np.cumprod(alphas, axis=-1), [*edge, (1, 0)], constant_values=1.0)
  return reached * (1.0 - np.pad(alphas, [*edge, (0, 1)]))


def _positions(alphas: ArrayLike) -> np.ndarray:
  alphas = as_numbers("alphas", alphas, 0.0, 1.0)
  if alphas.ndim == 0:
    raise ValueError("alphas: expected shape [.., G], found a scalar.")
  return alphas


def expected_steps(alpha: float, gamma: int, length: int) -> np.ndarray:
  """Mean steps that outputs of 0, 1, …, `length` tokens take: Eq. 1 for finite outputs.

  A step never goes beyond the end of the output, so the last one yields fewer
  tokens than Eq. 1: `S(0) = 0`, `S(n) = 1 + sum_k P(k accepted) S(n - k - 1)`
  with S of a negative number taken as 0. `n / S(n)` rises to Eq. 1 as n grows.

  Args:
    alpha: mean acceptance probability, in [0, 1].
    gamma: drafted tokens per step, at least 0.
    length: longest output, at least 0.

  Returns:
    float64 [length + 1].

  Raises:
    ValueError: an argument outside of its range.

  Example:
    >>> expected_steps(1.0, 3, 9)[[4, 5, 9]].tolist()
    [1.0, 2.0, 3.0]
  """
  as_counts("length", length)
  law = accepted_law(alpha, gamma)
  steps = np.zeros(length + 1)
  for n in range(1, length + 1):
    before = steps[np.maximum(n - 1 - np.arange(gamma + 1), 0)]
    steps[n] = 1.0 + law @ before
  return steps
