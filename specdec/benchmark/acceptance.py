"""alpha as Corollary 3.6 defines it: sum min(p, q) on text that the target wrote."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.interfaces import Context, LanguageModel, Params, Prompt, Transform
from specdec.theory import acceptance
from specdec.trees import topology

Array = jax.Array


@functools.partial(jax.jit, static_argnames=("target", "draft", "transform"))
def beta_on_text(
    target: LanguageModel,
    draft: LanguageModel,
    transform: Transform,
    params: Params,
    prompt: Prompt,
    sampling: Any,
    tokens: Array,
) -> Array:
  """beta = sum min(p, q) before each of `tokens`, both models scoring the whole text in one call.

  Args:
    target: the target.
    draft: the draft.
    transform: the one that decoding uses, on both.
    params: of both.
    prompt: what the text is an output for; the text follows its decoder prefix.
    sampling: settings of each row.
    tokens: [B, L] int32, the text, then anything.

  Returns:
    [B, L] float32; entries beyond the text mean nothing.

  Source: Leviathan et al. 2023, Theorem 3.5 and Corollary 3.6.
  """
  batch, length = tokens.shape
  block = topology.chain(length)
  last = jnp.take_along_axis(prompt.prefix, prompt.prefix_length[:, None] - 1, axis=1)
  inputs = jnp.concatenate([last, tokens[:, :-1]], axis=1)
  one = jnp.ones((batch,), jnp.int32)
  context = Context(inputs, one, one, sampling)

  def law(model, own):
    scores, _ = model.score(own, model.init(own, prompt, prompt.prefix.shape[1] + length), inputs, block)
    return jnp.exp(transform(scores.logits, inputs, block, context).log_p)

  return acceptance.beta(law(target, params.target), law(draft, params.draft))


class AlphaEstimate(NamedTuple):
  """alpha, and how sure it is.

  Attributes:
    alpha: mean beta over all tokens.
    standard_error: with sentences as the units that are independent.
    tokens: tokens averaged over.
    sentences: sentences they came from.
  """

  alpha: float
  standard_error: float
  tokens: int
  sentences: int


def estimate_alpha(betas: list[np.ndarray]) -> AlphaEstimate:
  """Pools the betas of each sentence; the error is that of a ratio of sums over sentences.

  Example:
    >>> estimate_alpha([np.array([1., 1.]), np.array([.5, .5])]).alpha
    0.75
  """
  sums = np.asarray([b.sum() for b in betas])
  counts = np.asarray([len(b) for b in betas])
  alpha = sums.sum() / counts.sum()
  residual = sums - alpha * counts
  n = len(betas)
  error = np.sqrt(n / max(1, n - 1) * np.square(residual).sum()) / counts.sum()
  return AlphaEstimate(float(alpha), float(error), int(counts.sum()), n)
