"""Whole sampled outputs follow the target's law: chi-square against its enumeration and against the plain decoder.

The law of every output, with EOS and length caps, is enumerated in NumPy from
the target's conditionals (`oracles`): for tables exactly, for a T5 from teacher-
forced logits of every prefix. Each group of settings has 4096 rows of one
`generate` call. Seeds are fixed. False alarms: an exact sampler fails one
chi-square with probability `LEVEL` = 1e-6, and so, over the fewer than 100 that
are made here, the whole file with at most 1e-4.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec import recipes
from specdec.interfaces import Params
from tests import fakes
from tests import oracles

LEVEL = 1e-6
ROWS = 4096
V, CAP = 4, 4

# Groups: what `fakes.settings` takes, and `table`, `prefix` (after BOS) and `limit`.
MASKS = [dict(), dict(top_k=2), dict(top_p=0.8)]
TRANSFORMS = [dict(temperature=t, **masks) for t in (0.5, 1.0, 2.0) for masks in MASKS]
REQUESTS = [
    dict(temperature=1.0, prefix=(3,), limit=3),
    dict(temperature=2.0, top_k=3, prefix=(2,), limit=2),
    dict(temperature=0.5, top_p=0.9, limit=1),
    dict(temperature=1.0, top_k=3, top_p=0.6),
]
PENALTIES = [dict(temperature=t, min_length=2, repetition_penalty=1.5, banned=(3,)) for t in (0.5, 1.0, 2.0)]
NOT_FINITE = [dict(temperature=1.0, table=1), dict(temperature=2.0, top_p=0.8, table=1), dict(temperature=1.0, table=2)]
GROUPS = [*TRANSFORMS, *REQUESTS, *PENALTIES, *NOT_FINITE]
# Not the target's law, for the test of the test: the draft's own, and a temperature that is a little off.
OTHERS = [dict(temperature=1.0, table=3), dict(temperature=1.1)]


@functools.cache
def tables():
  """Target and draft: 0 ordinary, 1 a draft that is NaN after a third, 2 after all, 3 the draft twice."""
  target, draft = fakes.random_tables(21, V, CAP + 1)
  broken = draft.copy()
  broken[:, ::3] = np.nan
  nan = np.full_like(draft, np.nan)
  return np.concatenate([target, target, target, draft]), np.concatenate([draft, broken, nan, draft])


def law_of(group):
  """The enumerated law of a group's outputs."""
  settings = {name: group[name] for name in ("temperature", "top_k", "top_p") if name in group}
  prefix = group.get("prefix", ())
  table = tables()[0][0]

  def next_law(tokens):
    entry = table[fakes.prefix_number(prefix + tokens, V, len(table))]
    logits = oracles.numpy_process(
        entry, (0, *prefix, *tokens), len(tokens), fakes.EOS, group.get("min_length", 0),
        group.get("repetition_penalty", 1.0), group.get("banned", ()),
    )  # fmt: skip
    return oracles.numpy_law(logits, **settings)

  law = oracles.sequence_law(next_law, group.get("limit", CAP))
  assert abs(sum(law.values()) - 1) < 1e-9
  return law


@functools.cache
def run(gamma, seed):
  """The outputs of every group, [groups][ROWS], and the statistics; one `generate` call."""
  groups = GROUPS + OTHERS
  column = lambda name, default: np.repeat([group.get(name, default) for group in groups], ROWS, axis=0)
  batch = ROWS * len(groups)
  prefix = [(0, *group.get("prefix", (0,))) for group in groups]
  length = [1 + len(group.get("prefix", ())) for group in groups]
  banned = [np.isin(np.arange(V), group.get("banned", ())) for group in groups]
  settings = fakes.settings(
      batch, temperature=column("temperature", 1.0), top_k=column("top_k", 0), top_p=column("top_p", 0.0),
      min_length=column("min_length", 0), repetition_penalty=column("repetition_penalty", 1.0),
      banned=np.repeat(banned, ROWS, axis=0),
  )  # fmt: skip
  prompt = fakes.prompts(batch, column("table", 0), 1, np.repeat(prefix, ROWS, axis=0), np.repeat(length, ROWS))
  out = loop.generate(
      fakes.table_step(gamma), jax.random.key(seed), fakes.table_params(*tables()), prompt, settings, CAP,
      jnp.asarray(column("limit", CAP), jnp.int32),
  )  # fmt: skip
  rows = oracles.outputs(out.tokens, out.lengths)
  by_group = lambda x: np.asarray(x).reshape(len(groups), ROWS, *np.shape(x)[1:])
  return [rows[i : i + ROWS] for i in range(0, batch, ROWS)], jax.tree.map(by_group, out.statistics)


def name_of(group):
  return ",".join(f"{name}={value}" for name, value in group.items())


@pytest.mark.parametrize("index", range(len(GROUPS)), ids=[name_of(group) for group in GROUPS])
def test_outputs_follow_the_enumerated_law_and_the_plain_decoder(index):
  law = law_of(GROUPS[index])
  ours, theirs = run(2, 0)[0][index], run(0, 1)[0][index]
  assert oracles.p_value_against(law, ours) > LEVEL
  assert oracles.p_value_against(law, theirs) > LEVEL
  assert oracles.p_value_between(ours, theirs) > LEVEL


def test_the_outputs_took_several_steps_with_drafts_kept_and_rejected():
  _, statistics = run(2, 0)
  for index in range(len(TRANSFORMS)):
    assert (statistics.steps[index] >= 2).mean() > 0.2
    assert (statistics.histogram[index].sum(0) > 100).all()
  kept = len(GROUPS) - len(NOT_FINITE)
  assert not statistics.accepted[kept + 2].any()  # A draft that is NaN everywhere proposes nothing.
  assert (statistics.accepted[kept : kept + 2].sum(1) > 100).all()


def test_the_chi_square_sees_a_sampler_that_is_slightly_off():
  """It fails for draws from the draft, and for T = 1.1 in place of 1."""
  law = law_of(dict(temperature=1.0))
  outputs, _ = run(0, 1)
  assert oracles.p_value_against(law, outputs[-2]) < LEVEL
  assert oracles.p_value_against(law, outputs[-1]) < LEVEL
  ours, _ = run(2, 0)
  assert oracles.p_value_between(outputs[-2], ours[TRANSFORMS.index(dict(temperature=1.0))]) < LEVEL


# --- T5 --------------------------------------------------------------------------


@functools.cache
def t5_of_five_tokens():
  """A pair, and the target's logits after every prefix of up to 2 tokens, teacher-forced."""
  pair = fakes.t5_pair(vocab=5, seed=3)
  prefixes = list(itertools.product(range(5), repeat=2))
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
  column = lambda name: np.repeat([setting.get(name, 0) for setting in settings], ROWS)
  sampling = fakes.settings(batch, temperature=column("temperature"), top_k=column("top_k"), top_p=column("top_p"))
  prompt = fakes.prompts(batch, 2, 4)
  prompt = prompt._replace(tokens=jnp.tile(jnp.array([[2, 4, 3, 1]], jnp.int32), (batch, 1)))
  params = Params(pair.target_params, pair.draft_params)
  outputs = []
  for step in (recipes.leviathan(pair.target, pair.draft, 2), recipes.autoregressive(pair.target)):
    out = loop.generate(step, jax.random.key(len(outputs)), params, prompt, sampling, 3)
    outputs.append(oracles.outputs(out.tokens, out.lengths))
    if step.size:
      assert (np.asarray(out.statistics.histogram).sum(0) > 500).all()
  for i, setting in enumerate(settings):
    law = oracles.sequence_law(lambda tokens: oracles.numpy_law(table[tokens], **setting), 3)
    ours, theirs = (rows[i * ROWS : (i + 1) * ROWS] for rows in outputs)
    assert oracles.p_value_against(law, ours) > LEVEL, setting
    assert oracles.p_value_against(law, theirs) > LEVEL, setting
    assert oracles.p_value_between(ours, theirs) > LEVEL, setting
