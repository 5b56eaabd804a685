"""Whole sampled outputs follow the target's law: chi-square against its enumeration and against the plain decoder.

The law of every output, with EOS and length caps, is enumerated in NumPy from
the target's conditionals (`fakes`): for tables exactly, for a T5 from teacher-
forced logits of every prefix. Seeds are fixed. False alarms: each file-level
test makes at most 24 chi-square tests, and each of those fails an exact sampler
with probability `ALPHA` / 24 = 1e-4 / 24, so that a test does with at most 1e-4.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec import recipes
from specdec.interfaces import Params
from tests import fakes

ALPHA, TESTS = 1e-4, 24
ROWS = 4096
V, CAP = 4, 4
TRANSFORMS = [dict(), dict(top_k=2), dict(top_p=0.8)]
SETTINGS = [dict(temperature=t, **transform) for t in (0.5, 1.0, 2.0) for transform in TRANSFORMS]


def stacked(settings, **constant):
  """The settings of a batch that has `ROWS` rows for each of `settings`."""
  columns = {name: np.repeat([s.get(name, 0) for s in settings], ROWS) for name in ("temperature", "top_k", "top_p")}
  return fakes.settings(ROWS * len(settings), **columns, **constant)


@pytest.fixture(scope="module")
def tables():
  return fakes.random_tables(21, V, CAP + 1)


def samples(gamma, params, settings, prompt=None, seed=0, cap=CAP, limit=None, **constant):
  """The outputs of each of `settings`: lists of `ROWS` tuples; and the statistics."""
  batch = ROWS * len(settings)
  limit = np.full(batch, cap) if limit is None else limit
  out = loop.generate(
      fakes.table_step(gamma), jax.random.key(seed), params, prompt or fakes.prompts(batch),
      stacked(settings, **constant), cap, jnp.asarray(limit, jnp.int32),
  )  # fmt: skip
  rows = fakes.outputs(out.tokens, out.lengths)
  return [rows[i : i + ROWS] for i in range(0, batch, ROWS)], out.statistics


@pytest.mark.parametrize("gamma", [2, 3])
def test_tables_follow_the_enumerated_law_and_the_plain_decoder(tables, gamma):
  target, draft = tables
  params = fakes.table_params(target, draft)
  found, statistics = samples(gamma, params, SETTINGS)
  plain, _ = samples(0, params, SETTINGS, seed=1)
  for setting, ours, theirs in zip(SETTINGS, found, plain):
    law = fakes.sequence_law(fakes.table_law(target[0], **setting), CAP)
    assert abs(sum(law.values()) - 1) < 1e-9
    assert fakes.p_value_against(law, ours) > ALPHA / TESTS, setting
    assert fakes.p_value_against(law, theirs) > ALPHA / TESTS, setting
    if gamma == 2:
      assert fakes.p_value_between(ours, theirs) > ALPHA / TESTS, setting
  # Two steps and more, and drafts both kept and rejected.
  assert (np.asarray(statistics.steps) >= 2).mean() > 0.4
  assert (np.asarray(statistics.histogram).sum(0) > 500).all()


def test_the_chi_square_sees_a_sampler_that_is_slightly_off(tables):
  """The test above would fail for draws from the draft, and for T = 1.1 in place of 1."""
  target, draft = tables
  one = [dict(temperature=1.0)]
  law = fakes.sequence_law(fakes.table_law(target[0]), CAP)
  from_draft, _ = samples(0, fakes.table_params(draft), one)
  warm, _ = samples(0, fakes.table_params(target), [dict(temperature=1.1)])
  assert fakes.p_value_against(law, from_draft[0]) < 1e-12
  assert fakes.p_value_against(law, warm[0]) < ALPHA / TESTS


def test_caps_prefixes_and_limits_differ_by_row(tables):
  """Rows of three requests in one batch: each of its own prefix, its own cap and its own settings."""
  target, draft = tables
  settings = [dict(temperature=1.0), dict(temperature=2.0, top_k=3), dict(temperature=0.5, top_p=0.9)]
  prefixes, lengths, caps = [(0, 0), (0, 3), (0, 2)], [1, 2, 2], [4, 3, 2]
  per_row = lambda values: np.repeat(values, ROWS, axis=0)
  prompt = fakes.prompts(3 * ROWS, 0, 1, per_row(prefixes), per_row(lengths))
  found, _ = samples(2, fakes.table_params(target, draft), settings, prompt, limit=per_row(caps))
  for setting, prefix, length, cap, ours in zip(settings, prefixes, lengths, caps, found):
    next_law = fakes.table_law(target[0], **setting)
    law = fakes.sequence_law(lambda tokens: next_law(prefix[1:length] + tokens), cap)
    assert fakes.p_value_against(law, ours) > ALPHA / TESTS, setting


def test_penalties_bans_and_minimum_length_in_draft_and_target_alike(tables):
  target, draft = tables
  settings = [dict(temperature=1.0), dict(temperature=2.0), dict(temperature=0.5, top_k=2)]
  banned = np.zeros(V, bool)
  banned[3] = True
  found, _ = samples(
      2, fakes.table_params(target, draft), settings, min_length=2, repetition_penalty=1.5, banned=banned
  )
  for setting, ours in zip(settings, found):

    def next_law(tokens):
      entry = target[0][fakes.prefix_number(tokens, V, target.shape[1])]
      logits = fakes.numpy_process(entry, [0, *tokens], len(tokens), min_length=2, penalty=1.5, banned=[3])
      return fakes.numpy_law(logits, **setting)

    assert fakes.p_value_against(fakes.sequence_law(next_law, CAP), ours) > ALPHA / TESTS, setting


def test_a_draft_that_is_not_finite_leaves_the_law(tables):
  target, draft = tables
  broken = draft.copy()
  broken[0, ::3] = np.nan  # After a third of the prefixes.
  settings = [dict(temperature=1.0), dict(temperature=2.0, top_p=0.8)]
  for table in (broken, np.full_like(draft, np.nan)):
    found, _ = samples(2, fakes.table_params(target, table), settings)
    for setting, ours in zip(settings, found):
      law = fakes.sequence_law(fakes.table_law(target[0], **setting), CAP)
      assert fakes.p_value_against(law, ours) > ALPHA / TESTS, setting


# --- T5 --------------------------------------------------------------------------


@functools.cache
def t5_of_five_tokens():
  """A pair, and the target's logits after every prefix of up to 2 tokens, teacher-forced."""
  pair = fakes.t5_pair(vocab=5, seed=3)
  prefixes = [(a, b) for a in range(5) for b in range(5)]
  encoder = jnp.tile(jnp.array([[2, 4, 3, 1]], jnp.int32), (25, 1))
  decoder = jnp.asarray([(0, *prefix) for prefix in prefixes], jnp.int32)
  logits = np.asarray(jax.jit(pair.module.apply)({"params": pair.variables}, encoder, decoder))
  table = {(): logits[0, 0]}
  for i, (a, b) in enumerate(prefixes):
    table[(a,)], table[(a, b)] = logits[i, 1], logits[i, 2]
  return pair, table


def test_a_t5_follows_its_teacher_forced_law_and_the_plain_decoder():
  pair, table = t5_of_five_tokens()
  settings = [dict(temperature=0.5, top_p=0.9), dict(temperature=1.0), dict(temperature=2.0, top_k=3)]
  batch = ROWS * len(settings)
  prompt = fakes.prompts(batch, 2, 4)
  prompt = prompt._replace(tokens=jnp.tile(jnp.array([[2, 4, 3, 1]], jnp.int32), (batch, 1)))
  params = Params(pair.target_params, pair.draft_params)
  outputs = []
  for step in (recipes.leviathan(pair.target, pair.draft, 2), recipes.autoregressive(pair.target)):
    out = loop.generate(step, jax.random.key(len(outputs)), params, prompt, stacked(settings), 3)
    outputs.append(fakes.outputs(out.tokens, out.lengths))
    if step.size:
      assert (np.asarray(out.statistics.histogram).sum(0) > 500).all()
  for i, setting in enumerate(settings):
    law = fakes.sequence_law(lambda tokens: fakes.numpy_law(table[tokens], **setting), 3)
    ours, theirs = (rows[i * ROWS : (i + 1) * ROWS] for rows in outputs)
    assert fakes.p_value_against(law, ours) > ALPHA / TESTS, setting
    assert fakes.p_value_against(law, theirs) > ALPHA / TESTS, setting
    assert fakes.p_value_between(ours, theirs) > ALPHA / TESTS, setting
