"""Measurements of trees: what DySpec's premise rests on, what building a tree costs, and means with their errors.

Dimensions: B batch, L text length, V vocabulary, M bins of draft probability.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.benchmark import acceptance
from specdec.benchmark import calls
from specdec.drafters.tree import DRAFT_TEMPERATURE, tree_drafter
from specdec.interfaces import Context, LanguageModel, Params, Prompt, Scores, Transform, Verdict
from specdec.probability.transforms import GREEDY_TEMPERATURE
from specdec.trees.growth import Growth

Array = jax.Array

BINS = 20
_RANKS = 8  # Most likely draft tokens that a greedy row looks at.


class Premise(NamedTuple):
  """Acceptance by draft probability, summed over tokens that the draft may draw.

  Attributes:
    weight: [M], how often a drafted token has a probability in this bin.
    probability: [M], sum of their draft probabilities.
    accepted: [M], sum of the probabilities that they are accepted.
  """

  weight: Any
  probability: Any
  accepted: Any


@functools.partial(jax.jit, static_argnames=("target", "draft", "transform"))
def premise_on_text(
    target: LanguageModel,
    draft: LanguageModel,
    transform: Transform,
    params: Params,
    prompt: Prompt,
    sampling: Any,
    tokens: Array,
    lengths: Array,
) -> Premise:
  """Acceptance against draft probability before each token of a text: the premise of DySpec, its Figure 2.

  A sampled row draws y from q and accepts it with `min(1, p(y) / q(y))`; here
  all y are weighted by q(y). A greedy row drafts the most likely tokens, and
  accepts the target's argmax; its draft probability is at `DRAFT_TEMPERATURE`.

  Args:
    target: the target.
    draft: the draft.
    transform: the one that decoding uses, on both.
    params: of both.
    prompt: what the text is an output for.
    sampling: settings of each row.
    tokens: [B, L] int32, the text, then anything.
    lengths: [B], of the text.

  Source: Xiong et al. 2024 (DySpec), section 3 and Figure 2.
  """
  p, q = acceptance.laws_on_text(target, draft, transform, params, prompt, sampling, tokens)
  inside = (jnp.arange(tokens.shape[1])[None, :] < lengths[:, None])[..., None]
  sampled = jnp.exp(q.log_p)
  ranked, token = jax.lax.top_k(jax.nn.softmax(q.logits / DRAFT_TEMPERATURE, axis=-1), min(_RANKS, sampled.shape[-1]))
  best = jnp.argmax(p.logits, axis=-1)[..., None]
  greedy = (sampling.temperature <= GREEDY_TEMPERATURE)[:, None, None]

  def bins(probability, weight, accepted):
    index = jnp.clip((probability * BINS).astype(jnp.int32), 0, BINS - 1)
    put = lambda x: jnp.zeros((BINS,)).at[index].add(jnp.where(inside, x, 0.0))
    return Premise(put(weight), put(weight * probability), put(accepted))

  drawn = bins(sampled, jnp.where(greedy, 0.0, sampled), jnp.where(greedy, 0.0, jnp.minimum(jnp.exp(p.log_p), sampled)))
  chosen = greedy.astype(jnp.float32) * jnp.ones_like(ranked)
  return jax.tree.map(jnp.add, drawn, bins(ranked, chosen, jnp.where(token == best, chosen, 0.0)))


def free_model(vocab_size: int) -> LanguageModel:
  """A draft that costs one pass over its logits: the same peaked law after every token, as steep as Zipf's squared."""

  def init(params, prompt: Prompt, buffer_length: int):
    return -2.0 * jnp.log1p(jnp.arange(vocab_size, dtype=jnp.float32))

  def score(params, state, tokens: Array, tree):
    # Depends on the tokens, so that no call can be moved out of the loop.
    logits = state + 1e-6 * tokens[..., None].astype(jnp.float32)
    return Scores(logits, logits[..., :1]), state

  return LanguageModel(init, score, lambda state, path, count: state)


class Text(NamedTuple):
  """What a call decoded: a prompt, its outputs [B, L], and how many tokens [B] of each count."""

  prompt: Prompt
  tokens: Any
  lengths: Any


def proposal_timer(model: LanguageModel, growth: Growth, transform: Transform) -> Callable[..., float]:
  """Makes a function that measures a proposal: the draft's calls, and what builds the tree from them.

  The draft proposes at each place of a text, as in a decode whose every step
  accepts nothing and adds the text's next token. With `free_model` the building
  is left: laws, drawing children, growing, and masks. Compiled once for all
  settings.

  Args:
    model: the draft.
    growth: the construction.
    transform: the one that decoding uses.

  Returns:
    `(params, texts, sampling, repeats=5) -> seconds` of one proposal: of each of
    `texts` the median over `repeats`, summed, over the number of places.
  """
  drafter = tree_drafter(model, growth, transform)

  @jax.jit
  def open_(params: Any, text: Text) -> tuple[Any, Array]:
    batch, width = text.prompt.prefix.shape
    length = width + text.tokens.shape[1] + 2
    place = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new, at, 0))
    whole = jnp.zeros((batch, length), jnp.int32).at[:, :width].set(text.prompt.prefix)
    return drafter.init(params, text.prompt, length + growth.size), place(whole, text.tokens, text.prompt.prefix_length)

  @jax.jit
  def loop(count: Array, params: Any, opened: tuple[Any, Array], first: Array, sampling: Any) -> Array:
    state, tokens = opened
    batch = tokens.shape[0]
    zeros, ones = jnp.zeros((batch,), jnp.int32), jnp.ones((batch,), jnp.int32)
    nothing = Verdict(jnp.zeros((batch, growth.size), jnp.int32), zeros, zeros, jnp.zeros((batch, growth.size)))

    def body(i, carry):
      state, total = carry
      keys = jax.random.split(jax.random.fold_in(jax.random.key(0), i), batch)
      draft, state = drafter.propose(keys, params, state, Context(tokens, first + i, first, sampling))
      # The whole proposal is used, so that nothing of it can be left out.
      parts = draft.tokens.sum(), draft.topology.mask.sum(), jnp.isfinite(draft.log_q[:, -1, 0]).sum()
      return drafter.observe(state, nothing, ones), total + sum(parts)

    return jax.lax.fori_loop(0, count, body, (state, jnp.int32(0)))[1]

  def seconds(params: Any, texts: Sequence[Text], sampling: Any, repeats: int = 5) -> float:
    total, places = 0.0, 0
    for text in texts:
      count, opened = int(np.max(text.lengths)), open_(params, text)
      run = functools.partial(loop, jnp.int32(count), params, opened, text.prompt.prefix_length, sampling)
      total += float(np.median(calls.in_turns({"loop": run}, repeats)["loop"]))
      places += count
    return total / places

  return seconds


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float]:
  """A ratio of sums and its standard error, sentences being the units that are independent.

  Example:
    >>> ratio([2.0, 4.0], [1.0, 2.0])
    (2.0, 0.0)
  """
  a, b = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
  mean = a.sum() / b.sum()
  n = len(a)
  error = np.sqrt(n / max(1, n - 1) * np.square(a - mean * b).sum()) / b.sum()
  return float(mean), float(error)
