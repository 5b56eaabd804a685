"""A tree drafted by a T5: the laws of all branches over one cache, and what decoding does with them.

The oracle is the teacher-forced network, on every path of every tree.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec.acceptance import multi_round
from specdec.drafters.tree import tree_drafter
from specdec.step import speculative_step
from specdec.trees import dyspec
from tests import fakes

BATCH, NODES, ROOM = 8, 7, 24
WIDE = ROOM + NODES  # Of a text with a path behind it.
KEYS = loop.row_keys(jax.random.key(7), BATCH)


@functools.cache
def program():
  """`init` and `run(keys, params, state) -> state, info, draft`, jitted once for this file."""
  pair, seen = fakes.standard_pair(), []
  transform = fakes.temperature_transform

  def spy(key, draft, law, sampling):
    seen.append(draft)
    return multi_round.without_replacement(key, draft, law, sampling)

  drafter = tree_drafter(pair.draft, dyspec.dyspec_growth(NODES, width=3), transform)
  step = speculative_step(pair.target, drafter, spy, transform, fakes.EOS)
  run = jax.jit(lambda keys, params, state: (*step.step(keys, params, state), seen.pop()))
  return jax.jit(step.init, static_argnums=4), run


def decode(prompt, keys=KEYS, temperature=0.0, edit=lambda state: state, params=None):
  """All steps of a batch: the states before each, what the steps drafted, and the last state."""
  init, run = program()
  params = params or fakes.standard_params()
  limit = prompt.prefix_length + 20
  state = init(params, prompt, fakes.settings(BATCH, temperature=temperature), limit, ROOM)
  history = []
  for index in range(20):
    if not np.asarray(state.running).any():
      break
    step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, index)
    before = edit(state)
    state, info, draft = run(step_keys, params, before)
    history.append((before, info, draft, state))
  return history, state


def outputs(state, prompt):
  tokens, start, end = (np.asarray(x) for x in (state.tokens, prompt.prefix_length, state.length))
  return [tuple(row[a:b].tolist()) for row, a, b in zip(tokens, start, end)]


forced_target = jax.jit(lambda *inputs: fakes.standard_pair().module.apply({"params": inputs[0]}, *inputs[1:]))
forced_draft = jax.jit(lambda *inputs: fakes.standard_pair().draft_module.apply({"params": inputs[0]}, *inputs[1:]))


def greedy_walk(prompt, cap=20):
  variables = fakes.standard_pair().variables
  tokens = np.zeros((BATCH, cap + 1), np.int32)
  for i in range(cap):
    logits = forced_target(variables, prompt.tokens, jnp.asarray(tokens), prompt.mask)
    tokens[:, i + 1] = np.argmax(logits[:, i], axis=-1)
  cut = lambda row: row[: row.index(fakes.EOS) + 1] if fakes.EOS in row else row
  return [tuple(cut(row)) for row in tokens[:, 1:].tolist()]


def test_greedy_trees_say_what_the_plain_network_says():
  for seed in (0, 1):
    prompt = fakes.standard_prompt(seed)
    history, state = decode(prompt)
    assert outputs(state, prompt) == greedy_walk(prompt)
    assert len(history) < 20
    accepted = np.concatenate([np.asarray(info.accepted) for _, info, _, _ in history])
    assert accepted.max() >= 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_laws_of_all_branches_are_the_draft_s(temperature):
  """Of every scored node of the first steps; after acceptances of every depth the cache is as from scratch."""
  prompt = fakes.standard_prompt(2)
  history, _ = decode(prompt, temperature=temperature)
  variables = fakes.standard_pair().draft_variables
  checked, depths = 0, set()
  for before, info, draft, after in history[:5]:
    parents, tokens = np.asarray(draft.topology.parents), np.asarray(draft.tokens)
    texts = np.zeros((BATCH, NODES, WIDE), np.int32)
    place = np.zeros((BATCH, NODES), int)
    for row in range(BATCH):
      length = int(before.length[row])
      for node in range(NODES):
        path, at = [], node
        while at > 0:
          path.append(tokens[row, at - 1])
          at = parents[row, at]
        texts[row, node, :length] = before.tokens[row, :length]
        texts[row, node, length : length + len(path)] = path[::-1]
        place[row, node] = length + len(path) - 1
        depths.add(len(path))
    repeat = lambda x: jnp.repeat(x, NODES, axis=0)
    logits = forced_draft(
        variables, repeat(prompt.tokens), jnp.asarray(texts.reshape(-1, WIDE)), repeat(prompt.mask)
    )
    logits = np.asarray(logits).reshape(BATCH, NODES, WIDE, -1)
    for row in np.flatnonzero(before.running):
      for node in np.flatnonzero(np.asarray(after.draft.row)[row, :NODES] >= 0):
        expected = logits[row, node, place[row, node]]
        found = np.asarray(draft.log_q)[row, node]
        if temperature:
          np.testing.assert_allclose(found, jax.nn.log_softmax(expected), atol=5e-4)
        else:  # A point mass.
          assert found[expected.argmax()] == 0
        checked += 1
  assert checked > 60 and max(depths) >= 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rejected_slots_filled_with_nan_change_nothing(temperature):
  def poison(state):
    def spoil(cache):
      beyond = (jnp.arange(cache.buffer_length)[None] >= cache.length[:, None])[:, None, :, None]
      fill = lambda buffers: tuple(jnp.where(beyond, jnp.nan, b) for b in buffers)
      return cache._replace(keys=fill(cache.keys), values=fill(cache.values))

    model = state.draft.model._replace(cache=spoil(state.draft.model.cache))
    target = state.target._replace(cache=spoil(state.target.cache))
    return state._replace(target=target, draft=state.draft._replace(model=model))

  prompt = fakes.standard_prompt(3)
  clean, state = decode(prompt, temperature=temperature)
  spoilt, other = decode(prompt, temperature=temperature, edit=poison)
  assert outputs(state, prompt) == outputs(other, prompt)
  assert len(clean) == len(spoilt)
  assert any((np.asarray(info.accepted) < np.asarray(info.drafted)).any() for _, info, _, _ in clean)


def test_a_row_does_not_see_its_neighbours():
  """Trees differ by row; a row's own does not depend on the others, nor on how many calls they need."""
  prompt, order = fakes.standard_prompt(4), np.array([5, 3, 0, 7, 2, 6, 1, 4])
  temperature = np.array([0.0, 1.0, 0.5, 2.0, 0.0, 1.0, 1.0, 0.0])
  _, one = decode(prompt, KEYS, temperature)
  moved = jax.tree.map(lambda x: x[order], prompt)
  _, other = decode(moved, KEYS[order], temperature[order])
  np.testing.assert_array_equal(np.asarray(outputs(one, prompt), dtype=object)[order], np.asarray(outputs(other, moved), dtype=object))
  same = jax.tree.map(lambda x: jnp.broadcast_to(x[1:2], x.shape), prompt)
  _, alone = decode(same, jnp.broadcast_to(KEYS[1:2], (BATCH,)), temperature[1])
  assert set(outputs(alone, same)) == {outputs(one, prompt)[1]}


def test_a_target_that_breaks_on_a_drafted_token_stops_only_where_the_plain_decoder_does():
  prompt, pair = fakes.standard_prompt(), fakes.standard_pair()
  token = 13
  tokens = np.where(np.asarray(prompt.tokens) == token, token + 1, prompt.tokens)
  prompt = prompt._replace(tokens=jnp.asarray(tokens))
  clean = greedy_walk(prompt)
  params = fakes.standard_params()._replace(target=fakes.nan_embedding(pair.module, pair.variables, token))
  _, state = decode(prompt, params=params)
  for found, expected in zip(outputs(state, prompt), clean):
    stop = expected.index(token) + 1 if token in expected else len(expected)
    assert found == expected[:stop]
