"""Measured times of whole decodes in turns, and what the theory predicts for them.

Both decoders are compiled before they are timed and take turns, and ratios are
within one run: machines are noisy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import time
from typing import Any, NamedTuple

import numpy as np

from specdec.benchmark.calls import Costs
from specdec.data import prompts
from specdec.theory import speedup
from specdec.theory import tokens as theory_tokens

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
