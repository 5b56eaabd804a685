"""A smaller model as the drafter: the setting of Leviathan et al. 2023.

The draft's cache is kept complete. After a full acceptance it lacks the last
drafted token, so every proposal begins by scoring two tokens: the last two
committed ones, or the last one and a place that is not used.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.interfaces import Context, Draft, Drafter, LanguageModel, Prompt, Transform, Verdict
from specdec.probability import sampling as draw
from specdec.trees import topology

Array = jax.Array


class ModelDraftState(NamedTuple):
  """State of the draft model, and how many tokens its cache holds [B]."""

  model: Any
  length: Array


_PAIR = topology.chain(2)


def score_last(
    model: LanguageModel, params: Any, state: Any, length: Array, context: Context
) -> tuple[Array, Array, Array, Any]:
  """Completes a draft's cache of `length` [B] tokens with the 1 or 2 committed ones that it lacks.

  Returns:
    Logits after the last committed token [B, 1, V]; that token [B, 1]; how many
    were missing [B]; and the model's state.
  """
  window = jax.vmap(lambda row, start: jax.lax.dynamic_slice_in_dim(row, start, 2))(context.tokens, length)
  new = context.length - length  # 1 or 2 of the window are committed
  scores, state = model.score(params, state, window, _PAIR)
  state = model.commit(state, None, new)
  logits = jnp.take_along_axis(scores.logits, (new - 1)[:, None, None], axis=1)
  return logits, jnp.take_along_axis(window, (new - 1)[:, None], axis=1), new, state


def model_drafter(model: LanguageModel, gamma: int, transform: Transform) -> Drafter:
  """Drafts a chain of `gamma` tokens with `model`, one call a token.

  Args:
    model: the draft; its vocabulary is the target's.
    gamma: tokens drafted a step.
    transform: the target's own transform, so that q is what is sampled from.

  Raises:
    ValueError: gamma is below 1.

  Source: Leviathan et al. 2023, Algorithm 1.
  """
  if gamma < 1:
    raise ValueError(f"gamma: expected at least 1 drafted token a step, found {gamma}.")
  block = topology.chain(gamma + 1)
  single = topology.chain(1)

  def init(params: Any, prompt: Prompt, buffer_length: int) -> ModelDraftState:
    return ModelDraftState(model.init(params, prompt, buffer_length), prompt.prefix_length - 1)

  def choose(uniform: Array, logits: Array, last: Array, context: Context) -> tuple[Array, Array]:
    log_q = transform(logits, last, single, context).log_p
    return draw.from_law(uniform, log_q), log_q

  def propose(key: Array, params: Any, state: ModelDraftState, context: Context) -> tuple[Draft, ModelDraftState]:
    uniforms = draw.uniforms(key, gamma)
    logits, last, new, model_state = score_last(model, params, state.model, state.length, context)
    token, log_q = choose(uniforms[:, :1], logits, last, context)

    def call(carry, uniform):
      model_state, token, context = carry
      context = extend(context, token)
      scores, model_state = model.score(params, model_state, token, single)
      after, log_q = choose(uniform, scores.logits, token, context)
      return (model_state, after, context), (after, log_q)

    # A loop and not unrolled: the kernels of one call stay in the instruction cache.
    carry, (tokens, laws) = jax.lax.scan(call, (model_state, token, context), uniforms[:, 1:].T[..., None])
    join = lambda first, rest: jnp.concatenate([first, jnp.moveaxis(rest[:, :, 0], 0, 1)], axis=1)
    draft = Draft(join(token, tokens), block, join(log_q, laws))
    return draft, ModelDraftState(carry[0], state.length + new)

  def observe(state: ModelDraftState, verdict: Verdict, committed: Array) -> ModelDraftState:
    # Of the committed tokens the cache holds all but the next token, and never the last drafted one.
    known = jnp.minimum(jnp.maximum(committed - 1, 0), gamma - 1)
    return ModelDraftState(model.commit(state.model, None, known), state.length + known)

  return Drafter(init, propose, observe, gamma)


def extend(context: Context, token: Array) -> Context:
  """The context after one more token [B, 1]."""
  put = lambda row, value, place: jax.lax.dynamic_update_slice_in_dim(row, value, place, 0)
  return context._replace(
      tokens=jax.vmap(put)(context.tokens, token, context.length), length=context.length + 1
  )
