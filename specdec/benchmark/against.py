"""Whole decodes against a yardstick on the same weights, in turns within one run.

The yardstick is T5X's own `temperature_sample`, or what one writes first over
Flax's parameters (`benchmark.flax_loop`).

A call is an encoder and a loop. The loop's time a token is told apart by timing
each decoder at one new token too: `(t(n) - t(1)) / (n - 1)`.
"""

from collections.abc import Callable, Sequence
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec import loop
from specdec import models
from specdec.adapters import flax_model
from specdec.benchmark import flax_loop
from specdec.data import prompts
from specdec.data import vocabularies

Array = jax.Array


class Timing(NamedTuple):
  """One decoder on all requests: medians over repeats, then sums over the calls.

  Attributes:
    seconds: of the calls.
    first: of the same calls at one new token.
    tokens: new tokens, the slowest row's of each call.
    outputs: [B, L] of each call.
  """

  seconds: float
  first: float
  tokens: int
  outputs: list[np.ndarray]

  @property
  def call_ms(self) -> float:
    """Milliseconds a token, the encoder included."""
    return 1e3 * self.seconds / self.tokens

  def loop_ms(self, calls: int) -> float:
    """Milliseconds a token of the loop alone; NaN where outputs have one token."""
    rest = self.tokens - calls
    return 1e3 * (self.seconds - self.first) / rest if rest else float("nan")


def check(name: str, temperatures: Sequence[float]) -> None:
  """Refuses an unknown yardstick, and temperatures that it does not know, before anything is run.

  Raises:
    ValueError: what was expected and found.
  """
  if name not in YARDSTICKS:
    raise ValueError(f"against: expected one of {sorted(YARDSTICKS)}, found {name!r}.")
  if name == "flax" and any(temperatures):
    found = ", ".join(f"{temperature:g}" for temperature in temperatures)
    raise ValueError(f"against: 'flax' decodes greedily, expected temperature 0 alone, found {found}.")


def yardstick(name: str, target: models.Model, max_new_tokens: int, temperature: float) -> Callable[..., Array]:
  """Another decoder of the weights of `target`: `(arguments of loop.generate) -> tokens [B, L]`.

  Args:
    name: of `YARDSTICKS`.
    target: whose weights it decodes.
    max_new_tokens: L.
    temperature: of all rows.

  Raises:
    ValueError: unknown name, the target is not a T5, or a temperature that the
      yardstick does not know.
    ModuleNotFoundError: T5X is asked for and missing.
  """
  check(name, [temperature])
  return YARDSTICKS[name](target, max_new_tokens, temperature)


def _parameters(target: models.Model) -> Any:
  """Flax's own tree of the target's weights."""
  if target.module is None:
    raise ValueError("against: expected a T5 as the target, found a network of another kind.")
  return flax_model.take_apart(target.module, target.params)


def _flax_decoder(target: models.Model, max_new_tokens: int, temperature: float) -> Callable[..., Array]:
  del temperature  # 0, see `check`.
  params = _parameters(target)

  def run(step: Any, keys: Array, params_: Any, prompt: Any, *rest: Any) -> Array:
    del step, keys, params_, rest
    return flax_loop.greedy_decode(target.module, params, prompt.tokens * prompt.mask, max_new_tokens, vocabularies.EOS_ID)[0]

  return run


def _t5x_decoder(target: models.Model, max_new_tokens: int, temperature: float) -> Callable[..., Array]:
  """T5X's own decoding.

  T5X keeps the logits beyond the pieces of the vocabulary, which ours may cut.
  """
  from specdec.adapters import t5x_model  # Only here: T5X is not always there.

  params = _parameters(target)
  decode = t5x_model.own_decoder(target.module.config, max_new_tokens, vocabularies.EOS_ID)

  def run(step: Any, keys: Array, params_: Any, prompt: Any, *rest: Any) -> Array:
    del step, params_, rest
    # T5X knows padding by its id, so the prompt's mask is in its tokens; one key serves all rows.
    return decode(params, prompt.tokens * prompt.mask, jax.random.key_data(keys[0]), jnp.float32(temperature))

  return run


YARDSTICKS = {"flax": _flax_decoder, "t5x": _t5x_decoder}


def _length(row: np.ndarray) -> int:
  """Tokens up to EOS, which counts."""
  ends = np.flatnonzero(row == vocabularies.EOS_ID)
  return int(ends[0]) + 1 if len(ends) else len(row)


def compare(
    decoders: dict[str, tuple[Any, Any]], requests: Sequence[prompts.Request], batch_size: int, repeats: int
) -> dict[str, Timing]:
  """Times decoders in turns.

  Args:
    decoders: name to a pair: at full length and at one new token; each is a
      `modes.decode.Decoder`, or a `(Decoder, function)` whose function takes the
      Decoder's arguments and gives tokens.
    requests: what to decode.
    batch_size: of the decoders.
    repeats: of each call; its median counts. One more is made first, to compile.
  """
  seconds = {name: [0.0, 0.0] for name in decoders}
  outputs = {name: [] for name in decoders}
  for group in prompts.batches(requests, batch_size):
    took = {name: ([], []) for name in decoders}
    for round_ in range(repeats + 1):
      for name, pair in decoders.items():
        for i, one in enumerate(pair):
          decoder, function = one if isinstance(one, tuple) else (one, loop.generate)
          arguments = decoder.arguments(group)
          started = time.perf_counter()
          result = jax.block_until_ready(function(*arguments))
          if round_:
            took[name][i].append(time.perf_counter() - started)
          elif i == 0:
            outputs[name].append(np.asarray(getattr(result, "tokens", result))[: len(group)])
    for name, (whole, first) in took.items():
      seconds[name][0] += float(np.median(whole))
      seconds[name][1] += float(np.median(first))
  tokens = {name: sum(max(map(_length, call)) for call in calls) for name, calls in outputs.items()}
  return {name: Timing(*seconds[name], tokens[name], outputs[name]) for name in decoders}


def records(timings: dict[str, Timing], greedy: bool) -> list[dict[str, Any]]:
  """A record a decoder; the first of `timings` is the yardstick's, which the others are compared with."""
  first, *_ = timings.values()
  calls = len(first.outputs)
  rows = sum(map(len, first.outputs))
  same = lambda one: sum(int((a == b).all(axis=1).sum()) for a, b in zip(one.outputs, first.outputs))
  return [
      {
          "decoder": name,
          "call_ms_per_token": one.call_ms,
          "loop_ms_per_token": one.loop_ms(calls),
          "call_ratio": first.call_ms / one.call_ms,
          "loop_ratio": first.loop_ms(calls) / one.loop_ms(calls),
          "tokens": one.tokens,
          "equal": same(one) if greedy else None,
          "rows": rows,
      }
      for name, one in timings.items()
  ]
