"""Whole decodes with trees over tables, under every transform: chains, perfect drafts, batches of different rows."""

import functools

import jax
import numpy as np
import pytest

from specdec import loop
from specdec import recipes
from specdec.acceptance import multi_round
from specdec.acceptance.rejection import rejection
from specdec.drafters.model import model_drafter
from specdec.drafters.tree import tree_drafter
from specdec.interfaces import StopCode
from specdec.step import speculative_step
from specdec.trees import dyspec
from specdec.trees import specinfer
from specdec.trees import static
from tests import fakes
from tests import oracles

BATCH, CAP = 32, 12
MIXED = dict(
    temperature=np.resize([0.0, 1.0, 2.0, 0.0, 0.5, 0.0, 1.0, 0.0], BATCH),
    top_k=np.resize([0, 3, 0, 2, 0, 0, 2], BATCH),
    top_p=np.resize([0.0, 0.0, 0.9, 0.0, 0.7], BATCH),
    min_length=np.resize([0, 2, 0, 5], BATCH),
    repetition_penalty=np.resize([1.0, 1.5, 1.0, 0.7, 1.0], BATCH),
    banned=np.arange(BATCH)[:, None] % 3 * 2 == np.arange(4)[None] + 1,  # Some rows may not say 1, some not 3.
)


@functools.cache
def step(name):
  model = fakes.table_model()
  simple = fakes.temperature_transform  # It compiles fast.
  if name == "leviathan":
    return speculative_step(model, model_drafter(model, 3, simple), rejection, simple, fakes.EOS)
  if name == "chain":
    drafter = tree_drafter(model, static.static_growth([-1, 0, 1, 2]), simple)
    return speculative_step(model, drafter, multi_round.without_replacement, simple, fakes.EOS)
  growth = {
      "fixed": lambda: static.static_growth([-1, 0, 0, 1, 2, 3]),
      "dyspec": lambda: dyspec.dyspec_growth(6, width=2),
      "dyspec_threshold": lambda: dyspec.dyspec_threshold_growth(6, 0.1, width=2),
      "specinfer": lambda: specinfer.specinfer_growth((2, 1)),
  }[name]()
  if name in ("fixed", "dyspec"):
    return recipes.tree(model, model, growth)
  rule = multi_round.with_replacement if growth.replacement else multi_round.without_replacement
  return speculative_step(model, tree_drafter(model, growth, simple), rule, simple, fakes.EOS)


def run(name, tables, rows=np.arange(BATCH), setting=None, keys=None):
  setting = MIXED if setting is None else setting
  prefix = np.array([[0, 2], [0, 3]])[np.asarray(rows) % 2]
  prompt = fakes.prompts(BATCH, np.asarray(rows) % fakes.TABLES, 1, prefix, 1 + np.asarray(rows) % 2)
  keys = loop.row_keys(jax.random.key(4), BATCH) if keys is None else keys
  return loop.generate(step(name), keys, fakes.table_params(*tables), prompt, fakes.settings(BATCH, **setting), CAP)


@pytest.fixture(scope="module")
def tables():
  return fakes.noisy_tables(21)


def test_a_chain_shaped_tree_decodes_as_the_chain(tables):
  chain, other = (run(name, tables, setting=dict(temperature=MIXED["temperature"])) for name in ("chain", "leviathan"))
  for name in ("tokens", "lengths", "stop"):
    np.testing.assert_array_equal(getattr(chain, name), getattr(other, name), err_msg=name)
  for name in ("steps", "drafted", "accepted", "committed", "histogram", "visited"):
    np.testing.assert_array_equal(getattr(chain.statistics, name), getattr(other.statistics, name), err_msg=name)
  np.testing.assert_allclose(chain.statistics.log_prob, other.statistics.log_prob, atol=1e-4)
  np.testing.assert_allclose(chain.statistics.acceptance, other.statistics.acceptance, atol=1e-4)


def greedy_rows(tables):
  """The plain walk of the rows at temperature 0, with their other settings."""
  for row in np.flatnonzero(MIXED["temperature"] == 0):
    setting = dict(min_length=MIXED["min_length"][row], penalty=MIXED["repetition_penalty"][row])
    setting["banned"] = np.flatnonzero(MIXED["banned"][row])
    prefix = ((), (3,))[row % 2]
    yield row, fakes.greedy_walk(tables[0][row % fakes.TABLES], CAP, prefix=prefix, **setting)


@pytest.mark.parametrize("name", ["fixed", "dyspec"])
def test_greedy_rows_of_a_mixed_batch_say_what_the_plain_decoder_says(tables, name):
  out = run(name, tables)
  found = oracles.outputs(out.tokens, out.lengths)
  for row, expected in greedy_rows(tables):
    assert found[row] == expected
  s = out.statistics
  np.testing.assert_array_equal(s.histogram.sum(1), s.steps)
  np.testing.assert_array_equal((s.histogram * np.arange(s.histogram.shape[1])).sum(1), s.accepted)
  np.testing.assert_array_equal(s.committed, out.lengths)
  cut = s.accepted + s.steps - s.committed
  assert set(np.unique(cut).tolist()) <= {0, 1}


@pytest.mark.parametrize("name", ["fixed", "dyspec"])
def test_a_row_does_not_see_its_neighbours(tables, name):
  order = np.random.default_rng(1).permutation(BATCH)
  keys = loop.row_keys(jax.random.key(4), BATCH)
  one = run(name, tables)
  other = run(name, tables, order, {k: v[order] for k, v in MIXED.items()}, keys[order])
  for a, b in ((one.tokens, other.tokens), (one.statistics.histogram, other.statistics.histogram)):
    np.testing.assert_array_equal(np.asarray(a)[order], b)


def test_a_perfect_draft_is_always_accepted(tables):
  """Under every transform: the laws of a draft's windows are those of the target's block."""
  out = run("fixed", (tables[0], tables[0]))
  rows = np.asarray(out.stop) == StopCode.LENGTH
  # Depth 3: every step commits four tokens, and twelve are three steps.
  assert rows.sum() > 3
  np.testing.assert_array_equal(np.asarray(out.statistics.steps)[rows], 3)
  np.testing.assert_array_equal(out.statistics.steps, -(-np.asarray(out.lengths) // 4))


def test_a_draft_that_is_not_finite_leaves_the_greedy_output(tables):
  for name in ("fixed", "dyspec"):
    out = run(name, (tables[0], np.full_like(tables[1], np.nan)))
    found = oracles.outputs(out.tokens, out.lengths)
    for row, expected in greedy_rows(tables):
      assert found[row] == expected
    assert not np.asarray(out.statistics.accepted)[MIXED["temperature"] > 0].any()


@pytest.mark.parametrize("name", ["fixed", "dyspec", "dyspec_threshold", "specinfer"])
def test_a_configuration_is_compiled_once(name, tables):
  """Whatever the settings, keys, prompts and weights, and so whatever the trees."""
  run(name, tables)
  compiled = []
  listen = lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    jax.jit(lambda x: x + len(name))(np.arange(3)).block_until_ready()
    assert len(compiled) == 1  # The listener does hear.
    del compiled[:]
    before = loop.generate._cache_size()
    for temperature in (0.0, 1.0):
      setting = {**MIXED, "temperature": np.full(BATCH, temperature)}
      run(name, fakes.noisy_tables(22), np.arange(BATCH)[::-1], setting, loop.row_keys(jax.random.key(9), BATCH))
    assert loop.generate._cache_size() == before
    assert not compiled
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
