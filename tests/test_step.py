"""One speculative step: its law, by exact integration, and the caches it leaves behind.

Law: draft and target are tables. Every cell of the uniforms of drafter and
rule is visited through the real `recipes.leviathan`, from logits to committed
tokens, and the law of a block's G + 1 tokens must be the target's to 1e-6 (see
`acceptance/test_rejection.py` for the rule alone). Caches: a rule that accepts
a given number of tokens in each row, and caches built from scratch.
"""

import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import recipes
from specdec.interfaces import Params, StopCode
from specdec.probability import sampling as draw
from tests import fakes
from tests import oracles

SIZE = 1024  # Rows of a call.
NEVER = -1  # An EOS that no model emits.


def opened(step, gamma):
  """`(uniforms of the draft, of the rule, params, prompt, sampling) -> StepInfo` of the first step, jitted."""

  @jax.jit
  def run(drafting, accepting, params, prompt, sampling):
    laid_open = lambda keys, count: drafting if count == gamma else accepting
    with mock.patch.object(draw, "uniforms", laid_open):
      state = step.init(params, prompt, sampling, jnp.full((SIZE,), 100, jnp.int32), 16)
      keys = jax.random.split(jax.random.key(0), SIZE)
      return step.step(keys, params, state)[1]

  return run


def law_of_step(run, p, q, tables, prompt, setting, gamma, vocab):
  """Asks the step in every cell; p and q are laws by new tokens. Returns the law of what it commits."""
  generator = np.random.default_rng(0)
  points = 2
  drafts, masses, drafting, accepting = [], [], [], []
  for tokens in itertools.product(range(vocab), repeat=gamma):
    qs = np.stack([q(tokens[:i]) for i in range(gamma)])
    mass = np.prod([qs[i, x] for i, x in enumerate(tokens)])
    if mass == 0:
      continue
    ps = np.stack([p(tokens[:i]) for i in range(gamma + 1)])
    volumes, inside = oracles.cells(oracles.accept_edges(tokens, ps, qs), points, generator)
    assert 1 - volumes.sum() < 2e-7
    low = np.array([qs[i, :x].sum() for i, x in enumerate(tokens)])
    width = np.array([qs[i, x] for i, x in enumerate(tokens)])
    margin = np.minimum(4e-7, width / 3)
    within = generator.uniform(size=(len(volumes), points, gamma))
    drafts += [tokens] * len(volumes)
    masses.append(mass * volumes)
    drafting.append(low + margin + within * (width - 2 * margin))
    accepting.append(inside)
  mass = np.concatenate(masses)
  drafting = np.float32(np.concatenate(drafting)).reshape(-1, gamma)
  accepting = np.concatenate(accepting).reshape(-1, gamma + 1)
  infos = []
  for start in range(0, len(drafting), SIZE):
    pad = lambda x: np.resize(x[start : start + SIZE], (SIZE, x.shape[1]))
    infos.append(jax.tree.map(np.asarray, run(pad(drafting), pad(accepting), tables, prompt, setting)))
  info = jax.tree.map(lambda *x: np.concatenate(x)[: len(drafting)], *infos)
  np.testing.assert_array_equal(info.draft, np.repeat(drafts, points, axis=0))
  outputs = oracles.outputs(info.tokens, info.committed)
  np.testing.assert_array_equal(info.accepted, info.committed - 1)
  law = {}
  for i, m in enumerate(mass):
    assert len(set(outputs[i * points : (i + 1) * points])) == 1, "a cell with two answers"
    law[outputs[i * points]] = law.get(outputs[i * points], 0.0) + m
  return law


SETTINGS = [
    dict(temperature=1.0),
    dict(temperature=0.5, top_k=2),
    dict(temperature=2.0, top_p=0.8),
    dict(temperature=1.0, top_k=3, top_p=0.6),
    dict(temperature=0.0),
]


@pytest.mark.parametrize("vocab,gamma", [(3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3)])
def test_law_of_a_block_is_the_target_s(vocab, gamma):
  target, draft = fakes.random_tables(vocab + 10 * gamma, vocab, gamma + 2)
  forced = (1,) if gamma < 3 else ()  # A prompt with a prefix: the step starts elsewhere in the table.
  prompt = fakes.prompts(SIZE, prefix=((0, *forced),))
  model = fakes.table_model()
  run = opened(recipes.leviathan(model, model, gamma, eos_id=NEVER), gamma)
  for setting in SETTINGS if gamma < 3 else SETTINGS[:3]:
    p_of, q_of = fakes.table_law(target[0], **setting), fakes.table_law(draft[0], **setting)
    p, q = (lambda t: p_of(forced + t)), (lambda t: q_of(forced + t))
    tables = Params(jnp.asarray(target), jnp.asarray(draft))
    law = law_of_step(run, p, q, tables, prompt, fakes.settings(SIZE, **setting), gamma, vocab)
    for length in range(1, gamma + 2):
      found = oracles.continued(law, p, length)
      for tokens in itertools.product(range(vocab), repeat=length):
        exact = np.prod([p(tokens[:i])[x] for i, x in enumerate(tokens)])
        assert abs(found.get(tokens, 0.0) - exact) < 1e-6, (setting, tokens)


# --- Caches ----------------------------------------------------------------------


def committed_slots(cache, length):
  """Keys and values of the first `length` [B] slots, zero beyond."""
  inside = np.arange(cache.buffer_length) < np.asarray(length)[:, None]
  return [np.where(inside[:, None, :, None], buffer, 0) for buffer in (*cache.keys, *cache.values)]


@pytest.fixture(scope="module")
def forced():
  """States after steps in which row b accepted b of 3 drafted tokens, and then 3 - b."""
  gamma, batch, room = 3, 4, 24
  pair = fakes.standard_pair()
  rules = [np.arange(batch, dtype=np.int32), np.arange(batch, dtype=np.int32)[::-1].copy()]
  steps = [fakes.simple_step(pair, gamma, fakes.accept_counts(counts)) for counts in rules]
  prompt = fakes.prompts(batch, encoder_length=40, prefix=((0, 3),))
  prompt = prompt._replace(tokens=jnp.asarray(fakes.encoder_rows(batch, 40, 16)))
  params = fakes.standard_params()
  init = jax.jit(steps[0].init, static_argnums=4)
  state = init(params, prompt, fakes.settings(batch, temperature=1.0), jnp.full((batch,), room, jnp.int32), room)
  states, infos = [state], []
  for i, step in enumerate([steps[0], steps[1], steps[0]]):
    state, info = jax.jit(step.step)(jax.random.split(jax.random.key(i), batch), params, state)
    states.append(state)
    infos.append(info)
  return prompt, states, infos


def test_every_length_of_acceptance_happened(forced):
  _, _, infos = forced
  assert [info.accepted.tolist() for info in infos] == [[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_caches_after_a_rejection_equal_caches_from_scratch(forced, after):
  prompt, states, _ = forced
  pair, params = fakes.standard_pair(), fakes.standard_params()
  state = states[after]
  width = 16
  again = prompt._replace(prefix=state.tokens[:, :width], prefix_length=state.length)
  size = state.tokens.shape[1]
  target = jax.jit(pair.target.init, static_argnums=2)(params.target, again, size)
  draft = jax.jit(pair.draft.init, static_argnums=2)(params.draft, again, size)
  # The target lacks the last token; the draft may lack the one before it as well, and then knows that it does.
  known = state.length - 1
  np.testing.assert_array_equal(state.target.cache.length, known)
  np.testing.assert_array_equal(state.draft.model.cache.length, state.draft.length)
  lacks = np.asarray(known - state.draft.length)
  assert lacks.tolist() == [int(n == 3) for n in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3]][after - 1]]
  for found, expected in zip(committed_slots(state.target.cache, known), committed_slots(target.cache, known)):
    np.testing.assert_allclose(found, expected, atol=2e-5)
  held = state.draft.length
  for found, expected in zip(committed_slots(state.draft.model.cache, held), committed_slots(draft.cache, held)):
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_cross_attention_is_not_touched_by_a_rejection(forced):
  _, states, _ = forced
  cross = lambda model: (model.cross_keys, model.cross_values, model.cross_bias)
  for state in states[1:]:
    jax.tree.map(np.testing.assert_array_equal, cross(state.target), cross(states[0].target))
    jax.tree.map(np.testing.assert_array_equal, cross(state.draft.model), cross(states[0].draft.model))


# --- What a step reports ---------------------------------------------------------


def test_rows_that_have_ended_are_left_alone():
  """By the limit at once, by a limit below the prefix, or by a stop code of their own."""
  target, draft = fakes.random_tables(3, 4, 4)
  model = fakes.table_model()
  step = recipes.leviathan(model, model, 2, eos_id=NEVER)
  params = Params(jnp.asarray(target), jnp.asarray(draft))
  prompt = fakes.prompts(4, prefix=((0, 2),))
  limit = jnp.array([2, 9, 1, 9], jnp.int32)
  state = jax.jit(step.init, static_argnums=4)(params, prompt, fakes.settings(4, temperature=1.0), limit, 12)
  assert state.stop.tolist() == [StopCode.LENGTH, StopCode.RUNNING, StopCode.LENGTH, StopCode.RUNNING]
  state = state._replace(stop=state.stop.at[3].set(int(StopCode.NOT_FINITE)))
  one_step = jax.jit(step.step)
  for i in range(3):
    after, info = one_step(jax.random.split(jax.random.key(i), 4), params, state)
    for row in (0, 2, 3):
      np.testing.assert_array_equal(after.tokens[row], state.tokens[row])
      assert after.length[row] == state.length[row] and after.stop[row] == state.stop[row]
      for name in ("drafted", "accepted", "committed", "log_prob"):
        assert getattr(info, name)[row] == 0
      assert not info.visited[row].any()
    assert info.committed[1] >= 1
    state = after
