"""Measured times of the calls that the theory's c and v are ratios of.

Each is a loop of calls inside one compiled function, on an opened request, so
that what opening takes is no part of it. Functions are compiled before they are
timed, take turns, and count by their medians: machines are noisy.
"""

from collections.abc import Callable, Mapping
import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.interfaces import Context, LanguageModel, Prompt, Transform
from specdec.probability import sampling as draw
from specdec.trees import topology

Array = jax.Array


def in_turns(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
  """Seconds [repeats] of each function; one round calls each once, and a first round is not counted."""
  seconds = {name: [] for name in functions}
  for round_ in range(repeats + 1):
    for name, function in functions.items():
      started = time.perf_counter()
      jax.block_until_ready(function())
      if round_:
        seconds[name].append(time.perf_counter() - started)
  return {name: np.asarray(values) for name, values in seconds.items()}


class Costs(NamedTuple):
  """Seconds of one call inside a compiled loop: model, transform and choice of a token.

  Attributes:
    target: the target scores one token.
    block: the target scores gamma + 1 tokens.
    draft: the draft scores one token, between the target's calls: what a loop of
      steps takes beyond one of blocks, and at least what a loop of draft calls
      does. A small draft lies in a cache in the latter, and is evicted from it
      by the target's weights in the former.
    target_encode: the target opens a request (encoder, cross-attention).
    draft_encode: the draft does.
    score_target: as `target`, the network alone.
    score_block: as `block`, the network alone.
  """

  target: float
  block: float
  draft: float
  target_encode: float
  draft_encode: float
  score_target: float
  score_block: float

  @property
  def c(self) -> float:
    """Draft call over target call."""
    return self.draft / self.target

  @property
  def v(self) -> float:
    """Scoring gamma + 1 tokens over scoring one."""
    return self.block / self.target

  @property
  def v_score(self) -> float:
    """As `v`, for the network alone."""
    return self.score_block / self.score_target


def call_loop(
    model: LanguageModel, tokens_per_call: int, calls: int, transform: Transform | None
) -> Callable[[Any, Any, Any], Array]:
  """Builds a jitted loop of `calls` calls, each of `tokens_per_call` tokens, that feeds on its own output.

  It goes on from an opened request, so that opening takes no part of its time.
  Each call's input depends on the last one's output, and one token is kept of
  each, so that none can be left out or overlap. `transform` None times the
  network alone.

  Returns:
    A function of params, the model's state with room for `calls +
    tokens_per_call` tokens (see `open_request`) and sampling settings.
  """
  call = _call(model, tokens_per_call, transform)

  def loop(params: Any, state: Any, sampling: Any) -> Array:
    start = (state, _first_tokens(sampling, tokens_per_call))
    return jax.lax.fori_loop(0, calls, lambda i, carry: call(params, *carry, sampling), start)[1]

  return jax.jit(loop)


def step_loop(
    target: LanguageModel, draft: LanguageModel, gamma: int, steps: int, transform: Transform
) -> Callable[[Any, Any, Any], Array]:
  """Builds a jitted loop of `steps` steps, each of `gamma` draft calls and one of the target, without a rule.

  As `call_loop`; params and states are pairs, target and draft.
  """
  one, block = _call(draft, 1, transform), _call(target, gamma + 1, transform)

  def loop(params: Any, states: Any, sampling: Any) -> Array:
    def body(i, carry):
      (target_state, draft_state), last = carry
      call = lambda i, carry: one(params[1], *carry, sampling)
      draft_state, token = jax.lax.fori_loop(0, gamma, call, (draft_state, last[:, :1]))
      target_state, last = block(params[0], target_state, jnp.concatenate([token, last[:, 1:]], axis=1), sampling)
      return (target_state, draft_state), last

    return jax.lax.fori_loop(0, steps, body, (states, _first_tokens(sampling, gamma + 1)))[1]

  return jax.jit(loop)


def _call(model: LanguageModel, tokens_per_call: int, transform: Transform | None) -> Callable[..., tuple[Any, Array]]:
  """One call that keeps a token: (params, state, tokens [B, N], sampling) -> state, the next tokens [B, N]."""
  block = topology.chain(tokens_per_call)

  def call(params: Any, state: Any, tokens: Array, sampling: Any) -> tuple[Any, Array]:
    one = jnp.ones((tokens.shape[0],), jnp.int32)
    scores, state = model.score(params, state, tokens, block)
    if transform is None:
      tokens = (tokens + jnp.isfinite(scores.logits[..., 0])) % 7 + 2
    else:
      context = Context(tokens, one, one, sampling)
      tokens = draw.argmax(transform(scores.logits, tokens, block, context).log_p)
    return model.commit(state, None, one), tokens

  return call


def _first_tokens(sampling: Any, number: int) -> Array:
  return jnp.full((sampling.temperature.shape[0], number), 2, jnp.int32)


@functools.partial(jax.jit, static_argnums=(0, 3))
def open_request(model: LanguageModel, params: Any, prompt: Prompt, length: int) -> Any:
  """The model's state after `init` (encoder, cross-attention, prefix), with room for `length` more tokens."""
  return model.init(params, prompt, prompt.prefix.shape[1] + length)


def measure_costs(
    target: LanguageModel,
    draft: LanguageModel,
    params: Any,
    prompt: Prompt,
    sampling: Any,
    transform: Transform,
    gamma: int,
    calls: int = 32,
    repeats: int = 11,
) -> Costs:
  """Measures the calls that c and v are ratios of, in turns, as medians.

  Args:
    target: the target.
    draft: the draft.
    params: `interfaces.Params` of both.
    prompt: what to encode; its batch is the batch of every call.
    sampling: settings of each row.
    transform: the one that decoding uses.
    gamma: tokens drafted a step.
    calls: of one timed loop.
    repeats: timed loops of each kind.
  """
  models = {"target": (target, params.target), "draft": (draft, params.draft)}
  opens = {name: functools.partial(open_request, *m, prompt, calls + gamma + 1) for name, m in models.items()}
  states = {name: open_() for name, open_ in opens.items()}
  functions = {f"{name}_encode": open_ for name, open_ in opens.items()}
  loops = {
      "target": ("target", 1, transform),
      "block": ("target", gamma + 1, transform),
      "draft": ("draft", 1, transform),
      "score_target": ("target", 1, None),
      "score_block": ("target", gamma + 1, None),
  }
  for name, (which, tokens, law) in loops.items():
    model, weights = models[which]
    functions[name] = functools.partial(call_loop(model, tokens, calls, law), weights, states[which], sampling)
  steps = max(1, calls // gamma)
  loop = step_loop(target, draft, gamma, steps, transform)
  functions["step"] = functools.partial(loop, (params.target, params.draft), (states["target"], states["draft"]), sampling)
  number = dict.fromkeys(loops, calls) | {"step": steps}
  seconds = {name: float(np.median(s)) / number.get(name, 1) for name, s in in_turns(functions, repeats).items()}
  seconds["draft"] = max(seconds["draft"], (seconds.pop("step") - seconds["block"]) / gamma)
  return Costs(**seconds)
