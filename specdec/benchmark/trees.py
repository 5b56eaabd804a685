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
from specdec.benchmark import timing
from specdec.drafters.tree import DRAFT_TEMPERATURE, tree_drafter
from specdec.interfaces import Context, LanguageModel, Params, Prompt, Scores, Transform
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


_BUILDS = 16  # Proposals of one timed loop.


def build_loop(growth: Growth, transform: Transform, vocab_size: int) -> Callable[[Array, Prompt, Any], Array]:
  """A jitted loop of proposals whose draft is free: drawing, growing, masks and laws are left. See `build_seconds`."""
  drafter = tree_drafter(free_model(vocab_size), growth, transform)

  def loop(key: Array, prompt: Prompt, sampling: Any) -> Array:
    batch = prompt.prefix.shape[0]
    state = drafter.init(None, prompt, growth.size + 8)
    context = Context(jnp.zeros((batch, 8), jnp.int32), prompt.prefix_length, prompt.prefix_length, sampling)

    def body(i, carry):
      state, tokens = carry
      keys = jax.random.split(jax.random.fold_in(key, i), batch)
      # Each proposal starts from a token of the one before, so that none can be left out.
      start = context._replace(tokens=context.tokens.at[:, 0].set(tokens[:, -1]))
      draft, after = drafter.propose(keys, None, state, start)
      return after._replace(length=state.length), draft.tokens + draft.topology.parents[..., 1:] % 2

    return jax.lax.fori_loop(0, _BUILDS, body, (state, jnp.zeros((batch, growth.size), jnp.int32)))[1]

  return jax.jit(loop)


def build_seconds(loop: Callable[[Array, Prompt, Any], Array], prompt: Prompt, sampling: Any, repeats: int = 5) -> float:
  """Seconds to build a tree once, the draft's own calls not counted.

  Args:
    loop: from `build_loop`.
    prompt: of the requests.
    sampling: settings of each row.
    repeats: timed loops; their median counts.
  """
  times = timing.in_turns({"build": lambda: loop(jax.random.key(0), prompt, sampling)}, repeats)
  return float(np.median(times["build"])) / _BUILDS


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
