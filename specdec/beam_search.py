"""Beam search, the second baseline, with T5X's semantics.

Each row keeps n live hypotheses and the n best finished ones. A step scores the
last token of every live hypothesis, takes the 2n likeliest continuations, and
sorts them: those that end in EOS compete for the finished places by

  score = log p(tokens) / ((5 + length) / 6)^alpha

(Wu et al. 2016, equation 14, with 5 for both constants), the others for the live
ones by log p. The length counts every token after BOS, forced ones included,
and forced tokens have log-probability 0. A row ends at its limit, or when no
live hypothesis can still beat the worst finished one.

What is easily taken for a fault is T5X's too: a row without a finished
hypothesis returns live ones with plain log p, places that were never filled
score -1e7, the best stands last, and n = 1 is not greedy decoding. It ends a
hypothesis where EOS is the best *or the second best* continuation, and goes on
with the best one that is not EOS.

Dimensions: B batch, n beams, P prefix, L token buffer, V vocabulary.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.interfaces import Context, LanguageModel, Prompt, StopCode, Transform
from specdec.trees import topology

Array = jax.Array

UNLIKELY = -1.0e7  # T5X's NEG_INF: a place that holds no hypothesis.


class BeamSearch(NamedTuple):
  """What is static of a search; built by `recipes.beam_search`.

  Attributes:
    target: the model.
    transform: only its `Law.logits` are read: bans and penalties count, while
      temperature and top-k or top-p masks do not.
    eos_id: the token that ends a hypothesis.
    beams: n.
  """

  target: LanguageModel
  transform: Transform
  eos_id: int
  beams: int


class BeamOutput(NamedTuple):
  """The n best of each row, rising: the best is the last.

  Attributes:
    tokens: [B, n, max_new_tokens] int32, new tokens (the prefix is not among
      them), EOS included, then 0.
    lengths: [B, n] int32, how many of them there are.
    scores: [B, n] float32.
    stop: [B] int32, `StopCode`: EOS if a hypothesis ended, else LENGTH or NOT_FINITE.
    steps: [B] int32, calls of the target.
  """

  tokens: Array
  lengths: Array
  scores: Array
  stop: Array
  steps: Array


class _Hypotheses(NamedTuple):
  """n hypotheses a row, rising by score."""

  tokens: Array  # [B, n, L] int32
  score: Array  # [B, n] float32: log p of live ones, the score of finished ones
  length: Array  # [B, n] int32, prefix included
  ended: Array  # [B, n] bool, False for a place that was never filled


class _State(NamedTuple):
  live: _Hypotheses
  finished: _Hypotheses
  position: Array  # [B] int32, length of the live hypotheses
  running: Array  # [B] bool
  finite: Array  # [B] bool
  steps: Array  # [B] int32
  model: Any  # of B * n rows


def brevity_penalty(alpha: Array | float, length: Array) -> Array:
  """((5 + length) / 6)^alpha.

  Example:
    >>> float(brevity_penalty(1.0, jnp.int32(7)))
    2.0
  """
  return ((5.0 + length.astype(jnp.float32)) / 6.0) ** alpha


def _take(hypotheses: _Hypotheses, index: Array) -> _Hypotheses:
  """The hypotheses `index` [B, m] of each row."""
  return jax.tree.map(lambda x: jax.vmap(lambda row, i: row[i])(x, index), hypotheses)


def _best(score: Array, number: int) -> Array:
  """[B, number] places of the best, the best last; of equal ones the first in place is the better."""
  return jnp.flip(jax.lax.top_k(score, number)[1], axis=1)


def _select(keep: Array, new: Any, old: Any) -> Any:
  """`new` in the rows where `keep` [B], else `old`."""
  return jax.tree.map(lambda a, b: jnp.where(keep.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)


def row_axes(target: LanguageModel, params: Any, prompt: Prompt, length: int) -> Any:
  """Of each array in a model's state the axis that holds the rows; -1 where the rows share it.

  The contract of `LanguageModel` leaves the state to the model. Its shapes for
  batches of two sizes differ in the axis of the rows and nowhere else.
  """

  def shapes(size):
    rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype), prompt)
    return jax.eval_shape(lambda p, r: target.init(p, r, length), params, rows)

  def axis(two, three):
    found = [i for i, (a, b) in enumerate(zip(two.shape, three.shape)) if a != b]
    return found[0] if found else -1

  return jax.tree.map(axis, shapes(2), shapes(3))


@functools.partial(jax.jit, static_argnames=("method", "max_new_tokens"))
def search(
    method: BeamSearch,
    params: Any,
    prompt: Prompt,
    sampling: Any,
    max_new_tokens: int,
    alpha: Array | float = 0.6,
    limit: Array | None = None,
) -> BeamOutput:
  """Decodes a batch by beam search: one jitted program.

  One row is one request: its result does not depend on the other rows. The
  encoder runs once a request, not once a beam.

  Args:
    method: from `recipes.beam_search`.
    params: of the target.
    prompt: [B] requests.
    sampling: settings of each row; bans, minimum length and repetition penalty
      count.
    max_new_tokens: size of the output; no hypothesis gets more.
    alpha: exponent of the brevity penalty, 0 or more; traced.
    limit: [B] int32, new tokens allowed each row; None is `max_new_tokens`.

  Raises:
    ValueError: max_new_tokens is below 1, or the vocabulary has one token.

  Source: T5X `decoding.beam_search` at cc342d4.
  """
  if max_new_tokens < 1:
    raise ValueError(f"max_new_tokens: expected at least 1, found {max_new_tokens}.")
  batch, width = prompt.prefix.shape
  beams, length = method.beams, width + max_new_tokens
  single = topology.chain(1)
  cap = jnp.full((batch,), max_new_tokens, jnp.int32) if limit is None else jnp.minimum(limit, max_new_tokens)
  end = prompt.prefix_length + cap
  each = lambda x: jnp.repeat(x, beams, axis=0)
  settings, prefix_length = jax.tree.map(each, sampling), each(prompt.prefix_length)
  axes = row_axes(method.target, params, prompt, length)
  model = jax.tree.map(
      lambda x, axis: x if axis < 0 else jnp.repeat(x, beams, axis=axis),
      method.target.init(params, prompt, length),
      axes,
  )

  def continuations(state: _State, log_p: Array) -> tuple[_Hypotheses, Array]:
    """The 2n likeliest, the likeliest first, and the live hypothesis that each continues; `log_p` [B, n, V]."""
    vocab = log_p.shape[-1]
    if vocab < 2:
      raise ValueError(f"vocabulary: beam search expects at least 2 tokens, found {vocab}.")
    total = (log_p + state.live.score[..., None]).reshape(batch, beams * vocab)
    score, index = jax.lax.top_k(total, 2 * beams)
    parent, token = index // vocab, index % vocab
    found = _take(state.live, parent)
    put = jax.vmap(lambda row, at, new: row.at[:, at].set(new))
    return _Hypotheses(
        put(found.tokens, state.position, token), score, found.length + 1, token == method.eos_id
    ), parent

  def improvable(live: _Hypotheses, finished: _Hypotheses) -> Array:
    """[B], whether a live hypothesis may still enter the finished ones: it may grow to the limit and lose nothing."""
    possible = live.score[:, -1:] / brevity_penalty(alpha, end)[:, None]
    worst = jnp.where(finished.ended, finished.score.min(axis=1, keepdims=True), UNLIKELY)
    return ~jnp.all(worst > possible, axis=1)

  def body(state: _State) -> _State:
    flat = state.live.tokens.reshape(batch * beams, length)
    position = each(state.position)
    last = jnp.take_along_axis(flat, position[:, None] - 1, axis=1)
    scores, scored = method.target.score(params, state.model, last, single)
    law = method.transform(scores.logits, last, single, Context(flat, position, prefix_length, settings))
    log_p = jax.nn.log_softmax(law.logits[:, 0].astype(jnp.float32)).reshape(batch, beams, -1)
    finite = ~jnp.isnan(log_p).any(axis=(1, 2))
    found, parent = continuations(state, log_p)

    alive = found._replace(score=found.score + jnp.where(found.ended, UNLIKELY, 0.0))
    kept = _best(alive.score, beams)
    live = _take(alive, kept)
    value = found.score / brevity_penalty(alpha, state.position)[:, None] + jnp.where(found.ended, 0.0, UNLIKELY)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), state.finished, found._replace(score=value))
    finished = _take(both, _best(both.score, beams))

    moved = state.running & finite  # Rows that take this step.
    live, finished = _select(moved, (live, finished), (state.live, state.finished))
    after = method.target.commit(scored, None, each(moved.astype(jnp.int32)))
    kept_parent = jnp.take_along_axis(parent, kept, axis=1)
    source = jnp.where(moved[:, None], kept_parent, jnp.arange(beams)) + beams * jnp.arange(batch)[:, None]
    model = jax.tree.map(
        # What a step does not write is the same for all beams of a row, and stays where it is.
        lambda old, new, axis: new if axis < 0 or new is old else jnp.take(new, source.reshape(-1), axis=axis),
        state.model,
        after,
        axes,
    )
    position = state.position + moved.astype(jnp.int32)
    running = moved & (position < end) & improvable(live, finished)
    steps = state.steps + state.running.astype(jnp.int32)
    return _State(live, finished, position, running, state.finite & (finite | ~state.running), steps, model)

  inside = jnp.arange(width)[None, :] < prompt.prefix_length[:, None]
  tokens = jnp.zeros((batch, beams, length), jnp.int32)
  none = jnp.zeros((batch, beams), bool)
  # All beams hold the prefix; only the first may grow, or the others would repeat it.
  first = jnp.where(jnp.arange(beams) == 0, 0.0, UNLIKELY)[None, :]
  state = _State(
      live=_Hypotheses(
          tokens.at[:, :, :width].set(jnp.where(inside, prompt.prefix, 0)[:, None]),
          jnp.broadcast_to(first, (batch, beams)),
          jnp.broadcast_to(prompt.prefix_length[:, None], (batch, beams)),
          none,
      ),
      finished=_Hypotheses(
          tokens,
          jnp.full((batch, beams), UNLIKELY, jnp.float32),
          jnp.broadcast_to(prompt.prefix_length[:, None], (batch, beams)),
          none,
      ),
      position=prompt.prefix_length,
      running=prompt.prefix_length < end,
      finite=jnp.ones((batch,), bool),
      steps=jnp.zeros((batch,), jnp.int32),
      model=model,
  )
  state = jax.lax.while_loop(lambda state: state.running.any(), body, state)

  ended = state.finished.ended.any(axis=1)
  best = _select(ended, state.finished, state.live)
  new = lambda row, start: jax.lax.dynamic_slice_in_dim(row, start, max_new_tokens, axis=1)
  stop = jnp.where(state.finite, jnp.where(ended, StopCode.EOS, StopCode.LENGTH), StopCode.NOT_FINITE)
  return BeamOutput(
      jax.vmap(new)(best.tokens, prompt.prefix_length),
      best.length - prompt.prefix_length[:, None],
      best.score,
      stop.astype(jnp.int32),
      state.steps,
  )
