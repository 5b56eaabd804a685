"""The baseline: one token a call of the target, under the same contract as speculation."""

from typing import Any

import jax
import jax.numpy as jnp

from specdec import interfaces
from specdec.interfaces import DecodeState, LanguageModel, Params, Prompt, Step, StepInfo, Transform
from specdec.probability import sampling as draw
from specdec.trees import topology

Array = jax.Array


def autoregressive_step(target: LanguageModel, transform: Transform, eos_id: int) -> Step:
  """Builds the plain decoder's step: score the last token, draw the next.

  Args:
    target: the model.
    transform: from logits to the law that tokens are drawn from.
    eos_id: the token that ends a row.
  """
  single = topology.chain(1)

  def init(params: Params, prompt: Prompt, sampling: Any, limit: Array, length: int) -> DecodeState:
    length += 1
    return interfaces.open_request(prompt, sampling, limit, length, target.init(params.target, prompt, length))

  def step(key: Array, params: Params, state: DecodeState) -> tuple[DecodeState, StepInfo]:
    last = state.last_token
    scores, target_state = target.score(params.target, state.target, last, single)
    law = transform(scores.logits, last, single, state.context)
    token = draw.from_law(draw.uniforms(key, 1), law.log_p)
    one = jnp.ones_like(state.length)
    after, committed, log_prob = interfaces.append(state, token, one, law.log_prob(jnp.zeros_like(token), token), eos_id)
    after = after._replace(target=target.commit(target_state, None, committed))
    none = jnp.zeros((*one.shape, 0), jnp.int32)
    info = StepInfo(
        drafted=jnp.zeros_like(one),
        accepted=jnp.zeros_like(one),
        committed=committed,
        visited=none.astype(bool),
        acceptance=none.astype(jnp.float32),
        log_prob=log_prob,
        drawn_log_prob=law.drawn_log_prob(jnp.zeros_like(token), token, committed),
        draft=none,
        parents=none,
        tokens=token,
    )
    return after, info

  return Step(init, step, 0)
