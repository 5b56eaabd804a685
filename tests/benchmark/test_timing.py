"""`benchmark.timing` and `benchmark.calls`: their arithmetic on made-up times, and the loops on a model that is a table."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from specdec import recipes
from specdec.benchmark import calls
from specdec.benchmark import timing
from specdec.data import prompts
from specdec.interfaces import Params
from specdec.theory import speedup
from specdec.theory import tokens as theory_tokens
from tests import fakes

COSTS = calls.Costs(
    target=10e-3, block=14e-3, draft=2e-3, target_encode=20e-3, draft_encode=5e-3, score_target=8e-3, score_block=12e-3
)


def comparison(plain_seconds, fast_seconds, plain_tokens, fast_tokens, equal=0):
  arrays = map(np.asarray, (plain_seconds, fast_seconds, plain_tokens, fast_tokens))
  return timing.Comparison(*arrays, equal, len(plain_seconds))


def test_costs_are_ratios():
  assert COSTS.c == pytest.approx(0.2) and COSTS.v == pytest.approx(1.4) and COSTS.v_score == pytest.approx(1.5)


def test_ratio_is_of_tokens_per_second():
  # 30 tokens in 3 s against 40 in 2 s: 10 a second against 20. The mean of the ratios of each call is another number.
  assert comparison([1.0, 2.0], [1.5, 0.5], [10, 20], [10, 30]).ratio == pytest.approx(2.0)
  assert comparison([1.0], [1.0], [10], [20]).ratio == pytest.approx(2.0)


def test_interval_holds_the_truth_as_often_as_it_says():
  rng = np.random.default_rng(0)
  calls, trials, held = 60, 400, 0
  for trial in range(trials):
    plain_tokens = rng.integers(5, 40, calls)
    plain = plain_tokens * rng.gamma(20, 1 / 20, calls)
    fast_tokens = rng.integers(5, 40, calls)
    fast = fast_tokens * rng.gamma(20, 1 / 20, calls) / 2.5  # The true ratio is 2.5.
    low, high = comparison(plain, fast, plain_tokens, fast_tokens).interval(0.9, draws=300, seed=trial)
    held += low <= 2.5 <= high
  error = np.sqrt(0.9 * 0.1 / trials)
  assert abs(held / trials - 0.9) < 4 * error + 0.01, "the bootstrap is slightly short at 60 calls"


def test_interval_is_repeatable_ordered_and_narrows_with_the_level():
  c = comparison([1.0, 2.0, 3.0], [1.0, 1.0, 2.0], [10, 20, 25], [10, 20, 30])
  assert c.interval() == c.interval()
  wide, narrow = c.interval(0.99), c.interval(0.5)
  assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
  assert wide[0] <= c.ratio <= wide[1]
  single = comparison([1.0], [0.5], [10], [10])
  assert single.interval() == (2.0, 2.0)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 3), (0.6, 1), (0.8, 4), (1.0, 7)])
def test_prediction_is_the_mean_time_of_simulated_decodes(alpha, gamma):
  lengths = [3, 10, 17, 40]
  rng = np.random.default_rng(gamma)
  runs = 4000
  steps = np.zeros(runs)
  for length in lengths:
    for run in range(runs):
      left = length
      while left > 0:
        rejected = rng.random(gamma) >= alpha
        left -= (rejected.argmax() if rejected.any() else gamma) + 1
        steps[run] += 1
  plain = sum(COSTS.target_encode + n * COSTS.target for n in lengths)
  fast = len(lengths) * (COSTS.target_encode + COSTS.draft_encode) + steps * (gamma * COSTS.draft + COSTS.block)
  error = fast.std() / np.sqrt(runs)
  predicted = plain / timing.predicted_ratio(COSTS, alpha, gamma, lengths)
  assert abs(predicted - fast.mean()) <= 4 * error + 1e-12


def test_prediction_for_long_outputs_is_theorem_3_8():
  free = COSTS._replace(target_encode=0.0, draft_encode=0.0)
  found = timing.predicted_ratio(free, 0.7, 5, [4000])
  assert found == pytest.approx(speedup.walltime_factor(0.7, 5, COSTS.c, COSTS.v), rel=2e-3)


def test_in_turns():
  order = []
  functions = {name: lambda name=name: order.append(name) or jnp.zeros(1) for name in "abc"}
  seconds = calls.in_turns(functions, 3)
  assert "".join(order) == "abc" * 4, "a first round is not counted"
  assert {name: s.shape for name, s in seconds.items()} == {"a": (3,), "b": (3,), "c": (3,)}
  assert all((s > 0).all() for s in seconds.values())


class FakeDecoder:
  """Takes its time from a list, and gives the tokens of each line."""

  batch_size = 2

  def __init__(self, seconds, tokens):
    self._seconds, self._tokens, self.compiled, self.calls = iter(seconds), tokens, 0, []

  def compile(self, requests):
    self.compiled += 1

  def __call__(self, group):
    self.calls.append([r.line for r in group])
    rows = [self._tokens[r.line] for r in group] + [[9, 9, 9, 9]] * (self.batch_size - len(group))
    tokens = np.zeros((self.batch_size, 4), int)
    for i, row in enumerate(rows):
      tokens[i, : len(row)] = row
    return types.SimpleNamespace(tokens=tokens, lengths=np.array([len(r) for r in rows])), next(self._seconds)


def test_compare_takes_turns_and_medians_and_leaves_out_filled_rows():
  requests = [prompts.Request("", (1,), (), line) for line in (1, 2, 3)]
  plain = FakeDecoder([9.0, 1.0, 2.0, 5.0, 4.0, 3.0], {1: [5], 2: [6, 7], 3: [8, 1]})
  fast = FakeDecoder([0.5, 0.5, 7.0, 1.0, 2.0, 1.5], {1: [5], 2: [6, 8], 3: [8, 1]})
  found = timing.compare(plain, fast, requests, repeats=3)
  assert plain.compiled == fast.compiled == 1
  assert plain.calls == fast.calls == [[1, 2]] * 3 + [[3]] * 3
  np.testing.assert_array_equal(found.plain_seconds, [2.0, 4.0])
  np.testing.assert_array_equal(found.speculative_seconds, [0.5, 1.5])
  np.testing.assert_array_equal(found.plain_tokens, [3, 2])
  assert (found.equal, found.rows) == (2, 3)


def test_description():
  totals = {"steps": 10, "drafted": 30, "accepted": 15, "committed": 25}
  c = comparison([2.0, 2.0], [1.0, 1.0], [20, 20], [20, 20], equal=2)
  lines = list(timing.describe(c, COSTS, 0.5, 3, totals, 0.0))
  assert lines[0].startswith("tokens per second: 20 with speculation, 10 without: 2.00x (95% 2.00 to 2.00, 2 requests")
  assert lines[1] == "equal outputs: 2 of 2"
  assert "tokens per target call 2.50; accepted 15 of 30 drafted (gamma 3)" in lines[2]
  ideal = speedup.walltime_factor(0.5, 3, COSTS.c, COSTS.v)
  assert f"{ideal:.2f}x for long outputs (Theorem 3.8), from c 0.200 and v 1.40" in lines[3]
  assert not any("equal" in line for line in timing.describe(c, None, 0.5, 3, totals, 1.0))


def test_call_loop_is_a_greedy_decode():
  """One token a call: the loop walks as the plain decoder does (it starts from token 2 instead of BOS)."""
  table, _ = fakes.random_tables(0, 5, 4)
  model, transform = fakes.table_model(), recipes.sampling_transform()
  loop = calls.call_loop(model, 1, 6, transform)
  prefix = [[0, 3, 4, 2, 3]]
  prompt = fakes.prompts(1, prefix=prefix)
  state = calls.open_request(model, jnp.asarray(table), prompt, 7)
  found = int(loop(jnp.asarray(table), state, fakes.settings(1, temperature=0.0))[0, 0])
  walked = [3, 4, 2, 2]
  for _ in range(6):
    number = fakes.prefix_number(walked, 5, table.shape[1])
    walked.append(int(table[0, number].argmax()))
  assert found == walked[-1]


def test_step_loop_is_gamma_draft_calls_and_a_block():
  """On tables of two models, walked by hand: the draft's last token is the first of the block."""
  tables = fakes.random_tables(3, 5, 6)
  model, transform = fakes.table_model(), recipes.sampling_transform()
  prompt, gamma, steps = fakes.prompts(1), 2, 2
  states = tuple(calls.open_request(model, jnp.asarray(table), prompt, 8) for table in tables)
  loop = calls.step_loop(model, model, gamma, steps, transform)
  found = np.asarray(loop(tuple(map(jnp.asarray, tables)), states, fakes.settings(1, temperature=0.0)))[0]
  # What is fed first stands where BOS does, which numbers no prefix.
  after = lambda table, walked: int(table[0, fakes.prefix_number(walked[1:], 5, table.shape[1])].argmax())
  committed, drafted, last = [], [], [2] * (gamma + 1)
  for _ in range(steps):
    token = last[0]
    for _ in range(gamma):
      drafted.append(token)
      token = after(tables[1], drafted)
    block = [token, *last[1:]]
    last = [after(tables[0], committed + block[: i + 1]) for i in range(gamma + 1)]
    committed.append(block[0])
  assert found.tolist() == last


def test_measured_costs_of_requests_with_long_prefixes():
  """A prefix longer than the timed loops once overflowed their caches."""
  target, draft = fakes.random_tables(1, 5, 3)
  model = fakes.table_model()
  prompt = fakes.prompts(2, prefix=[[0] + [3] * 64])
  costs = calls.measure_costs(
      model, model, Params(jnp.asarray(target), jnp.asarray(draft)), prompt, fakes.settings(2, temperature=1.0),
      recipes.sampling_transform(), 2, calls=4, repeats=3,
  )  # fmt: skip
  assert min(costs) > 0, "each is a time by itself, never a difference of two"


def test_expected_steps_used_here_end_with_the_output():
  steps = theory_tokens.expected_steps(0.5, 3, 10)
  assert steps[0] == 0 and steps[1] == 1 and (np.diff(steps) > 0).all()
