"""alpha as Corollary 3.6 defines it: sum min(p, q) on text that the target wrote."""

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.acceptance import rejection
from specdec.acceptance.greedy import chain_verdict
from specdec.interfaces import Context, Draft, Drafter, LanguageModel, Law, Params, Prompt, Step, Transform, Verdict
from specdec.probability import sampling as draw
from specdec.probability.transforms import GREEDY_TEMPERATURE
from specdec.step import speculative_step
from specdec.theory import acceptance
from specdec.trees import topology

Array = jax.Array


def laws_on_text(
    target: LanguageModel,
    draft: LanguageModel,
    transform: Transform,
    params: Params,
    prompt: Prompt,
    sampling: Any,
    tokens: Array,
) -> tuple[Law, Law]:
  """The laws p and q before each of `tokens` [B, L], each model scoring the whole text in one call; see `beta_on_text`."""
  batch, length = tokens.shape
  block = topology.chain(length)
  last = jnp.take_along_axis(prompt.prefix, prompt.prefix_length[:, None] - 1, axis=1)
  inputs = jnp.concatenate([last, tokens[:, :-1]], axis=1)
  one = jnp.ones((batch,), jnp.int32)
  context = Context(inputs, one, one, sampling)

  def law(model, own):
    scores, _ = model.score(own, model.init(own, prompt, prompt.prefix.shape[1] + length), inputs, block)
    return transform(scores.logits, inputs, block, context)

  return law(target, params.target), law(draft, params.draft)


@functools.partial(jax.jit, static_argnames=("target", "draft", "transform"))
def beta_on_text(
    target: LanguageModel,
    draft: LanguageModel,
    transform: Transform,
    params: Params,
    prompt: Prompt,
    sampling: Any,
    tokens: Array,
    leniences: Array | None = None,
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
    leniences: [K], each l in (0, 1], for `sum min(p / l, q)` on the same text; at
      temperature 0 the draft's argmax counts where its p is at least l times the
      largest, both at temperature 1. None is l = 1.

  Returns:
    [B, L] float32, or [K, B, L]; entries beyond the text mean nothing.

  Source: Leviathan et al. 2023, Theorem 3.5, Corollary 3.6 and A.5.
  """
  p, q = laws_on_text(target, draft, transform, params, prompt, sampling, tokens)
  beta = lambda lenience: _beta(p, jnp.exp(q.log_p), lenience, sampling.temperature)
  return beta(jnp.float32(1.0)) if leniences is None else jax.lax.map(beta, leniences)


def _beta(p: Law, q: Array, lenience: Array, temperature: Array) -> Array:
  """beta [B, N] of laws [B, N, V] as the rule `acceptance.rejection` accepts, at one lenience []."""
  sampled = acceptance.beta(jnp.exp(p.log_p), q, lenience)
  nearly = acceptance.beta_argmax(jax.nn.softmax(p.logits, axis=-1), q, lenience)
  return jnp.where((temperature <= GREEDY_TEMPERATURE)[:, None] & (lenience < 1), nearly, sampled)


def observing_step(target: LanguageModel, drafter: Drafter, transform: Transform, eos_id: int) -> Step:
  """A step that drafts, keeps nothing, and notes beta: plain decoding with any drafter looking on.

  Every token is the target's own, and at each of them the drafter proposes
  anew: the sum of `Statistics.acceptance` over that of `Statistics.visited`, at
  the first place, is alpha by Corollary 3.6 for drafters that are no models.

  Args:
    target: the target.
    drafter: of chains; only the law of its first token is used.
    transform: the one that decoding uses.
    eos_id: the token that ends a row.
  """

  def rule(key: Array, draft: Draft, law: Law, sampling: Any) -> Verdict:
    first = Law(law.log_p[:, :1], law.logits[:, :1])
    token = draw.from_law(draw.uniforms(key, 1)[:, 0], first.log_p[:, 0])
    q = rejection.draft_probability(draft, law.log_p.shape[-1])[:, :1]
    beta = jax.vmap(lambda p, q, l, t: _beta(jax.tree.map(lambda x: x[None], p), q[None], l, t[None])[0])(
        first, q, sampling.lenience, sampling.temperature
    )
    others = draft.tokens.shape[1] - 1
    return chain_verdict(jnp.zeros(draft.tokens.shape, bool), token, jnp.pad(beta, ((0, 0), (0, others))))

  return speculative_step(target, drafter, rule, transform, eos_id)


def by_position(statistics: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
  """How often each place of a chain was accepted, and reached: [G] each, summed over the first `rows` rows.

  Args:
    statistics: `loop.Statistics` on the host.
    rows: how many of them count.
  """
  steps = np.asarray(statistics.histogram)[:rows].sum(0)  # By accepted tokens, 0 … G.
  at_least = np.flip(np.cumsum(np.flip(steps)))
  return at_least[1:], np.asarray(statistics.visited)[:rows].sum(0)


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
  return estimate_from_sums([b.sum() for b in betas], [len(b) for b in betas])


def estimate_from_sums(sums: Sequence[float], counts: Sequence[int]) -> AlphaEstimate:
  """The same from the sum of the betas of each sentence, and their number.

  Example:
    >>> estimate_from_sums([2., 1.], [2, 2]).alpha
    0.75
  """
  sums, counts = np.asarray(sums, np.float64), np.asarray(counts)
  alpha = sums.sum() / counts.sum()
  residual = sums - alpha * counts
  n = len(sums)
  error = np.sqrt(n / max(1, n - 1) * np.square(residual).sum()) / counts.sum()
  return AlphaEstimate(float(alpha), float(error), int(counts.sum()), n)
