"""Measured times: whole decodes in turns, and the calls that the theory's c and v are ratios of.

Every function is compiled before it is timed, the candidates take turns, and
ratios are of medians within one run: machines are noisy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.data import prompts
from specdec.interfaces import Context, LanguageModel, Prompt, Transform
from specdec.probability import sampling as draw
from specdec.theory import speedup
from specdec.theory import tokens as theory_tokens
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
    draft: the draft scores one token.
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
  block = topology.chain(tokens_per_call)

  def loop(params: Any, state: Any, sampling: Any) -> Array:
    batch = sampling.temperature.shape[0]
    one = jnp.ones((batch,), jnp.int32)

    def body(i, carry):
      state, tokens = carry
      scores, state = model.score(params, state, tokens, block)
      if transform is None:
        tokens = (tokens + jnp.isfinite(scores.logits[..., 0])) % 7 + 2
      else:
        context = Context(tokens, one, one, sampling)
        law = transform(scores.logits, tokens, block, context).log_p
        tokens = draw.argmax(law)
      return model.commit(state, None, one), tokens

    start = (state, jnp.full((batch, tokens_per_call), 2, jnp.int32))
    return jax.lax.fori_loop(0, calls, body, start)[1]

  return jax.jit(loop)


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
  seconds = in_turns(functions, repeats)
  return Costs(**{name: float(np.median(s)) / (calls if name in loops else 1) for name, s in seconds.items()})


class Comparison(NamedTuple):
  """Both decoders on the same requests, in turns; one entry a call, medians over repeats.

  Attributes:
    plain_seconds: [n].
    speculative_seconds: [n].
    plain_tokens: [n], new tokens of the call.
    speculative_tokens: [n].
    equal: rows whose tokens are the same in both.
    rows: rows compared.
    compile_seconds: what compiling took, of both decoders, before anything was
      timed; 0 for what had been compiled already.
  """

  plain_seconds: np.ndarray
  speculative_seconds: np.ndarray
  plain_tokens: np.ndarray
  speculative_tokens: np.ndarray
  equal: int
  rows: int
  compile_seconds: tuple[float, float] = (0.0, 0.0)

  @property
  def ratio(self) -> float:
    """Tokens per second with speculation over without."""
    return float(
        (self.speculative_tokens.sum() / self.speculative_seconds.sum())
        / (self.plain_tokens.sum() / self.plain_seconds.sum())
    )

  def interval(self, level: float = 0.95, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Bootstrap interval of `ratio`, over calls."""
    rng = np.random.default_rng(seed)
    pick = rng.integers(0, len(self.plain_seconds), (draws, len(self.plain_seconds)))
    rate = lambda tokens, seconds: tokens[pick].sum(1) / seconds[pick].sum(1)
    ratios = rate(self.speculative_tokens, self.speculative_seconds) / rate(self.plain_tokens, self.plain_seconds)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def compare(
    plain,
    speculative,
    requests: Sequence[prompts.Request],
    repeats: int = 3,
    keep: Callable[[str, Sequence[prompts.Request], Any], None] | None = None,
) -> Comparison:
  """Times two `modes.decode.Decoder`s on the same requests, in turns.

  Args:
    plain: without speculation.
    speculative: with it.
    requests: what both decode.
    repeats: decodes of each call; their median counts.
    keep: called with 'plain' or 'speculative', the requests of a call and its
      output.
  """
  rows = {"plain": [], "speculative": []}
  seconds, equal, compiled = {"plain": [], "speculative": []}, 0, []
  for decoder in (plain, speculative):
    started = time.perf_counter()
    decoder.compile(requests)
    compiled.append(time.perf_counter() - started)
  for group in prompts.batches(requests, plain.batch_size):
    took, outputs = {"plain": [], "speculative": []}, {}
    for _ in range(repeats):
      for name, decoder in (("plain", plain), ("speculative", speculative)):
        outputs[name], one = decoder(group)
        took[name].append(one)
    for name in took:
      if keep is not None:
        keep(name, group, outputs[name])
      seconds[name].append(float(np.median(took[name])))
      rows[name].append(int(outputs[name].lengths[: len(group)].sum()))
    a, b = (outputs[name].tokens[: len(group)] for name in ("plain", "speculative"))
    equal += int((a == b).all(axis=1).sum())
  arrays = [np.asarray(x) for x in (seconds["plain"], seconds["speculative"], rows["plain"], rows["speculative"])]
  return Comparison(*arrays, equal, len(requests), tuple(compiled))


def predicted_ratio(costs: Costs, alpha: float, gamma: int, lengths: Sequence[int]) -> float:
  """The speed-up that the theory predicts for outputs of these lengths.

  Theorem 3.8 with v, for finite outputs and with the encoders:
  `(encode + n t) / (encode + encode_draft + steps(n) (gamma c + v) t)`, summed
  over the outputs, with the expected steps of `theory.tokens.expected_steps`.
  """
  lengths = np.asarray(lengths)
  steps = theory_tokens.expected_steps(alpha, gamma, int(lengths.max()))[lengths].sum()
  count = len(lengths)
  plain = count * costs.target_encode + lengths.sum() * costs.target
  step = gamma * costs.draft + costs.block
  return float(plain / (count * (costs.target_encode + costs.draft_encode) + steps * step))


def describe(
    comparison: Comparison, costs: Costs | None, alpha: float, gamma: int, totals: Mapping[str, int], temperature: float
) -> Iterator[str]:
  """The lines a person reads after a decode or a benchmark."""
  c = comparison
  rate = lambda tokens, seconds: tokens.sum() / seconds.sum()
  low, high = c.interval()
  yield (
      f"tokens per second: {rate(c.speculative_tokens, c.speculative_seconds):.0f} with speculation, "
      f"{rate(c.plain_tokens, c.plain_seconds):.0f} without: {c.ratio:.2f}x (95% {low:.2f} to {high:.2f}, "
      f"{c.rows} requests in turns)"
  )
  if temperature == 0:
    yield f"equal outputs: {c.equal} of {c.rows}"
  yield (
      f"alpha {alpha:.3f}; tokens per target call {totals['committed'] / max(1, totals['steps']):.2f}; "
      f"accepted {totals['accepted']} of {totals['drafted']} drafted (gamma {gamma})"
  )
  if costs is not None:
    ideal = float(speedup.walltime_factor(alpha, gamma, costs.c, costs.v))
    finite = predicted_ratio(costs, alpha, gamma, c.speculative_tokens)
    yield (
        f"theory: {finite:.2f}x for these lengths with the encoders, {ideal:.2f}x for long outputs (Theorem 3.8), "
        f"from c {costs.c:.3f} and v {costs.v:.2f}"
    )
