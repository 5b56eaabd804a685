"""Beam search against T5X's own results, a plain loop in NumPy, and enumeration."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import beam_search
from specdec import recipes
from specdec.interfaces import StopCode
from tests import fakes
from tests import oracles

EOS, VOCAB, ROWS, WIDTH, NEW = fakes.EOS, 4, 6, 3, 5
ENTRIES = fakes.heap_size(VOCAB, WIDTH - 1 + NEW)


@functools.cache
def method(beams):
  return recipes.beam_search(fakes.table_model(), beams)


@functools.cache
def tables(seed=0, scale=1.5):
  """A table a row, over every prefix there is."""
  return np.float32(np.random.default_rng(seed).normal(size=(ROWS, ENTRIES, VOCAB)) * scale)


def run(logits, beams, alpha=0.6, prefix=((0,) * WIDTH,), prefix_length=1, limit=NEW, rows=None, **setting):
  rows = np.arange(ROWS) if rows is None else np.asarray(rows)
  prompt = fakes.prompts(ROWS, rows, 1, prefix, np.resize(prefix_length, ROWS))
  setting.setdefault("banned", np.zeros(VOCAB, bool))
  out = beam_search.search(
      method(beams), jnp.asarray(logits), prompt, fakes.settings(ROWS, **setting), NEW, jnp.float32(alpha),
      jnp.asarray(np.resize(limit, ROWS), jnp.int32),
  )  # fmt: skip
  return jax.device_get(out)


def hypotheses(out, row):
  """(tokens, score) of the filled places of a row, the best first."""
  found = [
      (tuple(tokens[:length].tolist()), float(score))
      for tokens, length, score in zip(out.tokens[row], out.lengths[row], out.scores[row])
      if score > -1e6
  ]
  return found[::-1]


def log_softmax(logits):
  logits = np.float64(logits)
  return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def numpy_beam(next_logits, beams, alpha, cap, given=0):
  """The rule in words: 2n continuations; those with EOS go to the finished ones, the n best others live on.

  `next_logits(tokens) -> [V]`; `given` forced tokens count as length.
  """
  penalty = lambda length: ((5 + length) / 6) ** alpha
  live, finished = [((), 0.0)], []
  for step in range(cap):
    grown = [
        ((*tokens, token), log_p + float(log_softmax(next_logits(tokens))[token]))
        for tokens, log_p in live
        for token in range(VOCAB)
    ]
    grown = sorted(grown, key=lambda pair: -pair[1])[: 2 * beams]
    ended = [(tokens, log_p / penalty(given + step + 1)) for tokens, log_p in grown if tokens[-1] == EOS]
    finished = sorted(finished + ended, key=lambda pair: -pair[1])[:beams]
    live = [pair for pair in grown if pair[0][-1] != EOS][:beams]
    if len(finished) == beams and finished[-1][1] > live[0][1] / penalty(given + cap + 1):
      break
  return finished or live


def assert_same(found, expected):
  assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
  np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], atol=1e-4)


def next_logits(table, prefix=()):
  return lambda tokens: table[fakes.prefix_number([*prefix, *tokens], VOCAB, ENTRIES)]


@pytest.mark.parametrize("beams", [1, 2, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_equals_the_rule_in_words(beams, alpha):
  for seed in range(3):
    logits = tables(seed)
    out = run(logits, beams, alpha)
    for row in range(ROWS):
      assert_same(hypotheses(out, row), numpy_beam(next_logits(logits[row]), beams, alpha, NEW))


def test_prefixes_and_limits_of_their_own():
  logits, prefix = tables(), np.array([[0, 2, 3], [0, 3, 0]] * 3)
  lengths, limits = np.array([1, 2, 3, 3, 2, 1]), np.array([5, 4, 3, 1, 5, 2])
  out = run(logits, 3, 0.6, prefix, lengths, limits)
  for row in range(ROWS):
    given = prefix[row, 1 : lengths[row]].tolist()
    expected = numpy_beam(next_logits(logits[row], given), 3, 0.6, limits[row], len(given))
    assert_same(hypotheses(out, row), expected)
    assert all(len(tokens) <= limits[row] for tokens, _ in expected)


def test_rows_do_not_depend_on_their_batch():
  whole = run(tables(), 3)
  for row in (0, 4):
    alone = run(tables(), 3, rows=[row] * ROWS)
    for name in ("tokens", "lengths", "scores", "stop", "steps"):
      for other in range(ROWS):
        np.testing.assert_array_equal(getattr(alone, name)[other], getattr(whole, name)[row])


def test_many_beams_find_the_best_of_all_sequences():
  """With a beam for every prefix nothing is lost: the most probable outputs, by enumeration."""
  logits, cap = tables(1), 2
  beams = VOCAB**cap
  out = run(logits, beams, alpha=0.0, limit=cap)
  for row in range(ROWS):
    law = oracles.sequence_law(lambda tokens: np.exp(log_softmax(next_logits(logits[row])(tokens))), cap)
    ended = sorted(((t, np.log(p)) for t, p in law.items() if t[-1] == EOS), key=lambda pair: -pair[1])
    assert_same(hypotheses(out, row), ended)
    assert out.stop[row] == StopCode.EOS and out.steps[row] == cap


def test_one_beam_is_not_greedy_at_an_eos():
  """EOS second best: T5X's beam 1 keeps that hypothesis; greedy decoding never sees it."""
  logits = np.full((ROWS, ENTRIES, VOCAB), -30.0, np.float32)
  law = {(): [0.0, 0.3, 0.7, 0.0], (2,): [0.46, 0.02, 0.0, 0.52]}
  for tokens, probabilities in law.items():
    with np.errstate(divide="ignore"):
      logits[:, fakes.prefix_number(tokens, VOCAB, ENTRIES)] = np.maximum(np.log(probabilities), -30)
  greedy = fakes.greedy_walk(logits[0], 2)
  assert greedy == (2, 3)
  out = run(logits, 1, alpha=0.0, limit=2)
  assert hypotheses(out, 0)[0][0] == (EOS,)
  np.testing.assert_allclose(out.scores[0], np.log(0.3), atol=1e-4)
  # Where EOS is never among the two best, both are the same.
  out = run(logits, 1, alpha=0.0, limit=2, min_length=3)
  assert hypotheses(out, 0)[0][0] == greedy and out.stop[0] == StopCode.LENGTH


def test_settings_count_and_temperature_does_not():
  plain = run(tables(), 2)
  assert any(3 in tokens for row in range(ROWS) for tokens, _ in hypotheses(plain, row))
  banned = run(tables(), 2, banned=np.arange(VOCAB) == 3)
  assert not (banned.tokens == 3).any()
  hot = run(tables(), 2, temperature=5.0, top_k=1)
  np.testing.assert_array_equal(hot.tokens, plain.tokens)
  np.testing.assert_array_equal(hot.scores, plain.scores)
  short = run(tables(), 2, limit=0)
  assert not short.lengths.any() and not short.tokens.any() and (short.stop == StopCode.LENGTH).all()
  assert not short.steps.any()


def test_a_row_that_is_not_finite_stops_alone():
  logits = tables().copy()
  logits[2] = np.where(np.arange(ENTRIES)[:, None] == 0, logits[2], np.nan)
  out, whole = run(logits, 2), run(tables(), 2)
  assert out.stop[2] == StopCode.NOT_FINITE and out.steps[2] == 2
  others = [row for row in range(ROWS) if row != 2]
  np.testing.assert_array_equal(out.tokens[others], whole.tokens[others])
  assert (out.stop[others] == whole.stop[others]).all()


def test_the_encoder_runs_once_a_request_and_caches_follow_their_beams():
  """A T5 by its cache equals a T5 run anew over every prefix."""
  pair = fakes.standard_pair()
  prompt = fakes.standard_prompt()
  batch, cap = prompt.tokens.shape[0], 6
  rows = []

  def init(params, prompt, length):
    rows.append(prompt.tokens.shape[0])
    return pair.target.init(params, prompt, length)

  target = pair.target._replace(init=init)
  out = jax.device_get(beam_search.search(
      recipes.beam_search(target, 3), pair.target_params, prompt, fakes.settings(batch), cap
  ))  # fmt: skip
  assert rows.count(batch) == 1 and set(rows) == {batch, 2, 3}  # 2 and 3 are shapes only.
  apply = jax.jit(lambda params, tokens, fed: pair.module.apply({"params": params}, tokens, fed))
  for row in range(batch):
    for tokens, score in hypotheses(out, row):
      fed = np.zeros((1, cap), np.int32)
      fed[0, 1 : len(tokens)] = tokens[:-1]
      logits = np.asarray(apply(pair.variables, prompt.tokens[row : row + 1], fed))[0]
      log_p = sum(log_softmax(logits[i])[token] for i, token in enumerate(tokens))
      penalty = ((5 + len(tokens)) / 6) ** 0.6 if tokens[-1] == EOS else 1.0
      np.testing.assert_allclose(score, log_p / penalty, atol=1e-4)
  assert len({tokens for row in range(batch) for tokens, _ in hypotheses(out, row)}) > batch


def test_the_axis_of_the_rows_is_found():
  pair = fakes.standard_pair()
  prompt = jax.tree.map(lambda x: x[:1], fakes.standard_prompt())
  axes = beam_search.row_axes(pair.target, pair.target_params, prompt, 8)
  assert set(jax.tree.leaves(axes.cache.keys + axes.cross_values)) == {0} and axes.cache.length == 0
  assert axes.cache.pending == -1 and axes.distance_bias == -1


def test_bad_arguments():
  with pytest.raises(ValueError, match="beams: expected at least 1, found 0"):
    recipes.beam_search(fakes.table_model(), 0)
  prompt = fakes.prompts(1)
  with pytest.raises(ValueError, match="max_new_tokens: expected at least 1, found 0"):
    beam_search.search(method(2), jnp.zeros((1, 4, VOCAB)), prompt, fakes.settings(1), 0)
  with pytest.raises(ValueError, match="expects at least 2 tokens, found 1"):
    beam_search.search(method(2), jnp.zeros((1, 4, 1)), prompt, fakes.settings(1), 3)
