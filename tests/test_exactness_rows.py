"""Each row of a batch says what it would say alone, whatever stands beside it, around it or in its caches.

A tiny T5 pair through `loop.generate`: against the plain decoder, against a
walk over the teacher-forced network, against the row alone, against caches
whose forgotten slots hold NaN, and against itself under padding.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec.interfaces import StopCode
from tests import fakes
from tests import oracles

KEY = jax.random.key(7)


def assert_same(one, other, exact_statistics=True):
  for name in ("tokens", "lengths", "stop"):
    np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
  for name in ("steps", "drafted", "accepted", "committed", "histogram", "visited"):
    if exact_statistics:
      np.testing.assert_array_equal(getattr(one.statistics, name), getattr(other.statistics, name), err_msg=name)
  np.testing.assert_allclose(one.statistics.log_prob, other.statistics.log_prob, atol=1e-3)


# --- Greedy ----------------------------------------------------------------------


teacher_forced = jax.jit(lambda variables, *inputs: fakes.standard_pair().module.apply({"params": variables}, *inputs))


def greedy_walk(prompt, cap):
  """Greedy outputs by running the teacher-forced network again after each token; BOS is the prefix."""
  variables = fakes.standard_pair().variables
  tokens = np.zeros((prompt.tokens.shape[0], cap + 1), np.int32)
  for i in range(cap):
    logits = teacher_forced(variables, prompt.tokens, jnp.asarray(tokens), prompt.mask)
    tokens[:, i + 1] = np.argmax(logits[:, i], axis=-1)
  rows = []
  for row in tokens[:, 1:].tolist():
    rows.append(tuple(row[: row.index(fakes.EOS) + 1]) if fakes.EOS in row else tuple(row))
  return rows


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_speculation_is_greedy_decoding(seed):
  prompt = fakes.standard_prompt(seed)
  ours = fakes.standard_run(prompt, KEY, temperature=0.0)
  plain = fakes.standard_run(prompt, KEY, fakes.standard_step("autoregressive"), temperature=0.0)
  expected = greedy_walk(prompt, 20)
  assert oracles.outputs(ours.tokens, ours.lengths) == expected
  assert oracles.outputs(plain.tokens, plain.lengths) == expected
  np.testing.assert_array_equal(ours.stop, plain.stop)
  np.testing.assert_allclose(ours.statistics.log_prob, plain.statistics.log_prob, atol=1e-3)
  assert (np.asarray(ours.statistics.histogram).sum(0) > 0).all()  # Drafts of every length were accepted.
  assert (ours.statistics.steps < plain.statistics.steps).any()


# --- Alone and together ----------------------------------------------------------


def mixed_batch():
  """Rows that differ in everything: settings, limits, encoder lengths, prefixes; one ends at once by EOS."""
  prompt = fakes.standard_prompt(4)
  length = np.array([5, 3, 4, 5, 2, 8, 5, 4])
  prompt = prompt._replace(
      mask=jnp.asarray(np.arange(8) < length[:, None]), prefix_length=jnp.array([1, 1, 2, 1, 3, 1, 4, 1], jnp.int32)
  )
  banned = np.zeros((8, 16), bool)
  banned[3] = np.arange(16) != fakes.EOS
  setting = dict(
      temperature=[0.0, 2.0, 1e-6, 1.0, 1.0, 1.0, 0.5, 0.0], top_k=[0, 0, 3, 0, 4, 0, 0, 0],
      top_p=[0.0, 0.9, 0.0, 0.0, 0.0, 0.0, 0.8, 0.5], lenience=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0], banned=banned,
  )  # fmt: skip
  return prompt, setting, np.array([20, 20, 20, 20, 4, 20, 20, 0])


@pytest.mark.parametrize("method", ["leviathan", "autoregressive"])
def test_a_row_says_in_a_batch_what_it_says_alone(method):
  prompt, setting, limit = mixed_batch()
  step = fakes.standard_step(method)
  together = fakes.standard_run(prompt, KEY, step, limit=limit, **setting)
  assert together.stop[3] == StopCode.EOS and together.lengths[3] == 1
  assert together.stop[4] == StopCode.LENGTH and together.lengths[4] == 4
  assert together.lengths[7] == 0 and together.stop[7] == StopCode.LENGTH
  keys = loop.row_keys(KEY, 8)
  for row in range(8):
    one = {name: np.asarray(values)[row : row + 1] for name, values in setting.items()}
    alone = fakes.standard_run(fakes.row_of(prompt, row), keys[row : row + 1], step, limit=limit[row : row + 1], **one)
    assert_same(alone, fakes.row_of(together, row))


def test_a_row_does_not_see_its_neighbours():
  """The same request among others, at another place."""
  prompt, setting, limit = mixed_batch()
  keys = loop.row_keys(KEY, 8)
  order = np.array([5, 3, 0, 7, 2, 6, 1, 4])
  together = fakes.standard_run(prompt, keys, limit=limit, **setting)
  moved = fakes.standard_run(
      jax.tree.map(lambda x: x[order], prompt), keys[order], limit=limit[order],
      **{name: np.asarray(values)[order] for name, values in setting.items()},
  )  # fmt: skip
  assert_same(moved, jax.tree.map(lambda x: x[order], together))


# --- Forgotten slots -------------------------------------------------------------


@pytest.mark.parametrize("batch", [8, 1])
def test_rejected_slots_filled_with_nan_change_nothing(batch):
  step = fakes.poisoned_step()
  for seed, temperature in ((0, 0.0), (1, 1.0), (2, 2.0)):
    prompt = jax.tree.map(lambda x: x[:batch], fakes.standard_prompt(seed))
    clean = fakes.standard_run(prompt, KEY, temperature=temperature)
    out = fakes.standard_run(prompt, KEY, step, temperature=temperature)
    assert_same(out, clean)
    assert (np.asarray(out.statistics.accepted) < np.asarray(out.statistics.drafted)).any()


# --- Padding ---------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_of_the_encoder_input_changes_nothing(temperature):
  """On the right, on the left, on both sides and in the middle; ids of the padding are arbitrary."""
  row = fakes.encoder_rows(1, 5, 16, seed=9)[0]
  tokens, mask = fakes.encoder_rows(8, 8, 16, seed=10), np.zeros((8, 8), bool)
  places = [range(5), range(3, 8), range(1, 6), range(2, 7)]
  for i in range(8):
    tokens[i, places[i % 4]], mask[i, places[i % 4]] = row, True
  tokens[4:][~mask[4:]] = 0
  prompt = fakes.standard_prompt()._replace(tokens=jnp.asarray(tokens), mask=jnp.asarray(mask))
  keys = jnp.broadcast_to(KEY, (8,))
  out = fakes.standard_run(prompt, keys, temperature=temperature)
  first = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), out)
  assert_same(out, first)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_stands_beyond_the_prefix_changes_nothing(temperature):
  generator = np.random.default_rng(3)
  prefix = generator.integers(0, 16, (8, 4)).astype(np.int32)
  prefix[:, :2] = [0, 11]
  prompt = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), fakes.standard_prompt())
  prompt = prompt._replace(prefix=jnp.asarray(prefix), prefix_length=jnp.full((8,), 2, jnp.int32))
  out = fakes.standard_run(prompt, jnp.broadcast_to(KEY, (8,)), temperature=temperature)
  assert_same(out, jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), out))


# --- Weights that are no numbers -------------------------------------------------


def spoilt_target(token):
  pair = fakes.standard_pair()
  return fakes.nan_embedding(pair.module, pair.variables, token)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_in_the_target_stops_the_rows_that_meet_it_and_no_other(temperature):
  prompt = fakes.standard_prompt()
  tokens = np.asarray(prompt.tokens).copy()
  tokens[tokens == 3] = 4
  tokens[5, 2] = 3
  prompt = prompt._replace(tokens=jnp.asarray(tokens))
  banned = np.arange(16) == 3  # No row says 3; one reads it.
  clean = fakes.standard_run(prompt, KEY, temperature=temperature, banned=banned)
  params = fakes.standard_params()
  params = params._replace(target=spoilt_target(3))
  for method in ("leviathan", "autoregressive"):
    step = fakes.standard_step(method)
    out = fakes.standard_run(prompt, KEY, step, params, temperature=temperature, banned=banned)
    assert out.stop[5] == StopCode.NOT_FINITE and out.lengths[5] == 0
    if method == "leviathan":
      others = np.array([0, 1, 2, 3, 4, 6, 7])
      assert_same(jax.tree.map(lambda x: x[others], out), jax.tree.map(lambda x: x[others], clean))


def test_nan_after_one_token_stops_where_the_plain_decoder_stops():
  """A drafted token that breaks the target and is rejected must not end its row."""
  prompt, params = fakes.standard_prompt(), fakes.standard_params()
  ended = 0
  for token in (2, 5, 13, 14):
    broken = params._replace(target=spoilt_target(token))
    encoder = np.where(np.asarray(prompt.tokens) == token, token + 1, prompt.tokens)
    request = prompt._replace(tokens=jnp.asarray(encoder))
    plain = fakes.standard_run(request, KEY, fakes.standard_step("autoregressive"), broken, temperature=0.0)
    ours = fakes.standard_run(request, KEY, params=broken, temperature=0.0)
    assert_same(ours, plain, exact_statistics=False)
    ended += int((np.asarray(plain.stop) == StopCode.NOT_FINITE).sum())
  assert 0 < ended < 32


def test_nan_in_the_draft_leaves_the_output_of_the_plain_decoder():
  prompt, params = fakes.standard_prompt(), fakes.standard_params()
  plain = fakes.standard_run(prompt, KEY, fakes.standard_step("autoregressive"), temperature=0.0)
  nan = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params.draft)
  out = fakes.standard_run(prompt, KEY, params=params._replace(draft=nan), temperature=0.0)
  assert_same(out, plain, exact_statistics=False)
  sampled = fakes.standard_run(prompt, KEY, params=params._replace(draft=nan), temperature=1.0)
  assert not sampled.statistics.accepted.any() and np.isfinite(sampled.statistics.acceptance).all()
  pair = fakes.standard_pair()
  partly = params._replace(draft=fakes.nan_embedding(pair.draft_module, pair.draft_variables, 2))
  assert_same(fakes.standard_run(prompt, KEY, params=partly, temperature=0.0), plain, exact_statistics=False)


