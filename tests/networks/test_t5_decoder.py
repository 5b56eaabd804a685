"""`networks.t5_decoder` against the teacher-forced `networks.t5` and against itself, token by token.

Also: branches of a tree do not see each other, slots beyond the length may hold
anything, padding of the encoder changes nothing. `test_t5.py` holds the
teacher-forced network against NumPy and T5X.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.adapters import flax_model
from specdec.checkpoints import names
from specdec.interfaces import Prompt
from specdec.networks import t5
from specdec.networks import t5_decoder
from specdec.trees import topology
from tests import fakes

ROUNDING = 2e-4  # Between two float32 computations of one logit (their deviation is about 2).
OFFSETS = (0, 7, 127, 128, 200)  # Slots before the block; T5's maximum distance is 128.
BLOCK = 5
BUFFER = 216
TREE = (-1, 0, 0, 1, 1, 2, 5)


@pytest.mark.parametrize("out_first", [None, False, True])
@pytest.mark.parametrize("activations,tied", [(("gelu", "linear"), False), (("relu",), True)])
def test_take_apart_is_the_inverse_of_lay_out(out_first, activations, tied):
  config = dataclasses.replace(
      fakes.standard_pair().module.config, mlp_activations=activations, logits_via_embedding=tied
  )
  variables = fakes.t5_variables(t5.T5(config), seed=5)
  weights = t5_decoder.lay_out(variables, config, out_first)
  apart = names.flatten(t5_decoder.take_apart(weights, config))
  given = {name: leaf for name, leaf in names.flatten(variables).items() if not name.startswith("encoder/")}
  assert apart.keys() == given.keys()
  for name, leaf in given.items():
    np.testing.assert_array_equal(apart[name], leaf, err_msg=name)


@jax.jit
def opened(params, prompt):
  return fakes.standard_pair().target.init(params, prompt, BUFFER)


@pytest.fixture(scope="module")
def long():
  """One request a row, committed up to its offset: tokens [B, L], states, and teacher-forced logits."""
  pair = fakes.standard_pair()
  batch = len(OFFSETS)
  generator = np.random.default_rng(3)
  tokens = generator.integers(2, 16, (batch, BUFFER)).astype(np.int32)
  tokens[:, 0] = 0
  encoder = jnp.asarray(fakes.encoder_rows(batch, 6, 16))
  prompt = Prompt(encoder, jnp.ones((batch, 6), bool), jnp.asarray(tokens[:, :202]), 1 + jnp.array(OFFSETS, jnp.int32))
  state = opened(pair.target_params, prompt)
  forced = jax.jit(pair.module.apply)({"params": pair.variables}, encoder, jnp.asarray(tokens))
  return tokens, state, np.asarray(forced), prompt


@functools.cache
def scorer(parents=None, masked=False):
  """Jitted `score` for one topology."""
  tree = topology.chain(1) if parents is None else topology.from_parents(parents)
  if masked:
    tree = dataclasses.replace(tree, is_chain=False)
  model = fakes.standard_pair().target
  return jax.jit(lambda params, state, tokens: model.score(params, state, tokens, tree))


def ask(state, tokens, parents=None, masked=False):
  params = fakes.standard_pair().target_params
  return scorer(parents, masked)(params, state, jnp.asarray(tokens, jnp.int32))


CHAIN = tuple(range(-1, BLOCK - 1))


def window(tokens, start, width):
  return np.stack([row[s : s + width] for row, s in zip(tokens, start)])


def test_a_block_equals_single_tokens_and_teacher_forcing(long):
  tokens, state, forced, _ = long
  block = window(tokens, OFFSETS, BLOCK)
  together, _ = ask(state, block, CHAIN)
  commit = fakes.standard_pair().target.commit
  committed, pending = state, state
  for i in range(BLOCK):
    one, committed = ask(committed, block[:, i : i + 1])
    committed = commit(committed, None, jnp.ones(len(OFFSETS), jnp.int32))
    other, pending = ask(pending, block[:, i : i + 1])  # Scored, and not yet committed.
    np.testing.assert_allclose(together.logits[:, i], one.logits[:, 0], atol=ROUNDING)
    np.testing.assert_allclose(together.logits[:, i], other.logits[:, 0], atol=ROUNDING)
    np.testing.assert_allclose(together.hidden[:, i], one.hidden[:, 0], atol=ROUNDING)
  np.testing.assert_allclose(together.logits, window(forced, OFFSETS, BLOCK), atol=ROUNDING)
  assert committed.cache.length.tolist() == [offset + BLOCK for offset in OFFSETS]
  assert int(pending.cache.pending) == BLOCK


def test_positions_matter(long):
  """The bucket edge at 128 is seen: shifting a row by one slot moves its logits."""
  tokens, state, _, _ = long
  block = np.tile(tokens[:1, :BLOCK], (len(OFFSETS), 1))
  moved = state._replace(cache=state.cache._replace(length=state.cache.length - jnp.array([0, 1, 1, 1, 1])))
  one, other = ask(state, block, CHAIN)[0].logits, ask(moved, block, CHAIN)[0].logits
  assert (np.abs(np.asarray(one - other))[1:].max(axis=(1, 2)) > 10 * ROUNDING).all()


def test_a_chain_scored_as_a_tree_is_the_same(long):
  tokens, state, _, _ = long
  block = window(tokens, OFFSETS, BLOCK)
  np.testing.assert_allclose(ask(state, block, CHAIN)[0].logits, ask(state, block, CHAIN, True)[0].logits, atol=1e-5)


def test_hidden_states_are_what_the_logits_are_made_of(long):
  tokens, state, _, _ = long
  scores, _ = ask(state, window(tokens, OFFSETS, BLOCK), CHAIN)
  kernel = fakes.standard_pair().variables["decoder"]["logits_dense"]["kernel"]
  np.testing.assert_allclose(scores.logits, np.asarray(scores.hidden) @ kernel, atol=1e-4)


# --- Trees -----------------------------------------------------------------------


def paths_to_leaves(parents):
  for leaf in sorted(set(range(len(parents))) - set(parents)):
    path = [leaf]
    while parents[path[-1]] >= 0:
      path.append(parents[path[-1]])
    yield path[::-1]


def tree_tokens(seed=4):
  return np.random.default_rng(seed).integers(2, 16, (len(OFFSETS), len(TREE))).astype(np.int32)


def test_a_tree_scores_each_path_as_a_chain(long):
  _, state, _, _ = long
  tokens = tree_tokens()
  found, _ = ask(state, tokens, TREE)
  for path in paths_to_leaves(TREE):
    longer = path + [0] * (BLOCK - len(path))  # What follows is not seen.
    chain, _ = ask(state, tokens[:, longer], CHAIN)
    np.testing.assert_allclose(found.logits[:, path], chain.logits[:, : len(path)], atol=ROUNDING)


def test_swapped_siblings_move_no_other_branch(long):
  _, state, _, _ = long
  tokens = tree_tokens()
  found, _ = ask(state, tokens, TREE)
  swapped = tokens[:, [0, 1, 2, 4, 3, 5, 6]]  # The children of node 1.
  other, _ = ask(state, swapped, TREE)
  rest = [0, 1, 2, 5, 6]
  np.testing.assert_array_equal(found.logits[:, rest], other.logits[:, rest])
  np.testing.assert_allclose(found.logits[:, [3, 4]], other.logits[:, [4, 3]], atol=ROUNDING)
  changed = tokens.copy()
  changed[:, 2] = (changed[:, 2] + 1) % 16  # Moves nodes 2, 5 and 6 only.
  other, _ = ask(state, changed, TREE)
  np.testing.assert_array_equal(found.logits[:, [0, 1, 3, 4]], other.logits[:, [0, 1, 3, 4]])
  assert (np.abs(np.asarray(found.logits - other.logits))[:, [2, 5, 6]].max(-1) > 1e-3).all()


def test_a_committed_path_equals_a_cache_from_scratch(long):
  tokens, state, _, prompt = long
  pair = fakes.standard_pair()
  drafted = tree_tokens()
  _, scored = ask(state, drafted, TREE)
  path = jnp.array([[0, 1, 4], [0, 2, 5], [0, 2, 5], [0, 1, 3], [0, 2, 2]], jnp.int32)
  count = jnp.array([3, 3, 2, 1, 0], jnp.int32)
  after = jax.jit(pair.target.commit)(scored, path, count)
  again = tokens.copy()
  for row, offset in enumerate(OFFSETS):
    again[row, offset : offset + count[row]] = drafted[row, np.asarray(path)[row, : count[row]]]
  again = prompt._replace(prefix=jnp.asarray(again[:, :206]), prefix_length=prompt.prefix_length + count)
  scratch = opened(pair.target_params, again)
  np.testing.assert_array_equal(after.cache.length, scratch.cache.length)
  inside = (np.arange(BUFFER) < np.asarray(after.cache.length)[:, None])[:, None, :, None]
  for one, other in zip(after.cache.keys + after.cache.values, scratch.cache.keys + scratch.cache.values):
    np.testing.assert_allclose(np.where(inside, one, 0), np.where(inside, other, 0), atol=5e-5)
  following = tree_tokens(5)[:, :BLOCK]
  one, other = ask(after, following, CHAIN)[0], ask(scratch, following, CHAIN)[0]
  np.testing.assert_allclose(one.logits, other.logits, atol=ROUNDING)


# --- What must not be read -------------------------------------------------------


def test_slots_beyond_the_length_may_hold_nan(long):
  tokens, state, _, _ = long
  beyond = (np.arange(BUFFER) >= np.asarray(state.cache.length)[:, None])[:, None, :, None]
  poison = lambda buffers: tuple(jnp.where(beyond, jnp.nan, b) for b in buffers)
  cache = state.cache._replace(keys=poison(state.cache.keys), values=poison(state.cache.values))
  poisoned = state._replace(cache=cache)
  for parents, drafted in ((CHAIN, window(tokens, OFFSETS, BLOCK)), (TREE, tree_tokens())):
    np.testing.assert_array_equal(ask(poisoned, drafted, parents)[0].logits, ask(state, drafted, parents)[0].logits)


def test_a_node_that_is_not_finite_spoils_only_what_descends_from_it(long):
  """A drafted token may overflow the target and be rejected; the row must not end for it."""
  _, state, _, _ = long
  pair = fakes.standard_pair()
  params = fakes.nan_embedding(pair.module, pair.variables, 9)
  for parents, node, spoilt in ((CHAIN, 2, [2, 3, 4]), (TREE, 2, [2, 5, 6]), (TREE, 3, [3])):
    tokens = np.full((len(OFFSETS), len(parents)), 4, np.int32)
    clean, _ = ask(state, tokens, parents)
    tokens[:, node] = 9
    found, _ = scorer(parents)(params, state, jnp.asarray(tokens))
    rest = [i for i in range(len(parents)) if i not in spoilt]
    np.testing.assert_array_equal(found.logits[:, rest], clean.logits[:, rest])
    assert np.isnan(found.logits[:, spoilt]).all()


def test_padding_of_the_encoder_changes_nothing():
  """Wherever it stands: positions are slots, and T5's bias knows only their differences."""
  pair = fakes.standard_pair()
  row = fakes.encoder_rows(1, 5, 16)[0]
  places = [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [2, 3, 4, 5, 6]]
  tokens, mask = np.full((3, 9), 7, np.int32), np.zeros((3, 9), bool)  # The padding is an ordinary id, only masked.
  for i, place in enumerate(places):
    tokens[i, place], mask[i, place] = row, True
  padded = Prompt(jnp.asarray(tokens), jnp.asarray(mask), jnp.zeros((3, 1), jnp.int32), jnp.ones(3, jnp.int32))
  block = jnp.array([[0, 3, 5, 2, 8]], jnp.int32)

  @jax.jit
  def run(params, prompt, block):
    state = pair.target.init(params, prompt, 16)
    return pair.target.score(params, state, block, topology.chain(BLOCK))[0].logits

  found = run(pair.target_params, padded, jnp.tile(block, (3, 1)))
  expected = jax.jit(pair.module.apply)({"params": pair.variables}, jnp.asarray(row[None]), block)
  np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), atol=ROUNDING)


def test_what_stands_beyond_the_prefix_is_not_read(long):
  tokens, _, _, prompt = long
  pair = fakes.standard_pair()
  other = np.where(np.arange(202) < np.asarray(prompt.prefix_length)[:, None], prompt.prefix, 7)
  states = [opened(pair.target_params, prompt._replace(prefix=jnp.asarray(p))) for p in (prompt.prefix, other)]
  one, two = (ask(state, window(tokens, OFFSETS, BLOCK), CHAIN)[0].logits for state in states)
  np.testing.assert_array_equal(one, two)


# --- Other T5s -------------------------------------------------------------------


@pytest.mark.parametrize("changes,atol", [
    (dict(mlp_activations=("relu",), logits_via_embedding=True), ROUNDING),
    (dict(dtype="bfloat16"), 0.3),
    (dict(dtype="bfloat16", float32_attention_logits=True), 0.3),
], ids=["tied", "bfloat16", "bfloat16-float32-softmax"])  # fmt: skip
def test_other_configurations(changes, atol):
  config = dataclasses.replace(fakes.standard_pair().draft_module.config, **changes)
  module = t5.T5(config)
  variables = fakes.t5_variables(module, 1)
  model, params = flax_model.t5_model(module), flax_model.prepare(module, variables)
  assert (params.decoder.logits is None) == config.logits_via_embedding
  prompt = fakes.prompts(2, [3, 5], 4)
  tokens = jnp.asarray([[0, 4, 2, 9, 9, 11], [0, 7, 7, 3, 2, 6]], jnp.int32)

  @jax.jit
  def run(params, prompt, tokens):
    state = model.init(params, prompt, 8)
    scores, state = model.score(params, state, tokens[:, :4], topology.chain(4))
    state = model.commit(state, None, jnp.array([4, 4]))
    more, _ = model.score(params, state, tokens[:, 4:], topology.chain(2))
    return jnp.concatenate([scores.logits, more.logits], axis=1)

  found = run(params, prompt, tokens)
  assert found.dtype == jnp.float32
  forced = jax.jit(module.apply)({"params": variables}, prompt.tokens, tokens)
  np.testing.assert_allclose(found, forced, atol=atol)
  assert np.abs(np.asarray(found - forced)).mean() < atol / 4


def test_logits_beyond_the_vocabulary_are_cut_off():
  pair = fakes.standard_pair()
  model = flax_model.t5_model(pair.module, vocab_size=13)

  def run(params, prompt, tokens):
    return model.score(params, model.init(params, prompt, 8), tokens, topology.chain(1))[0].logits

  shape = jax.eval_shape(run, pair.target_params, fakes.prompts(1), jnp.array([[0]]))
  assert shape.shape == (1, 1, 13)
  with pytest.raises(ValueError, match="17 pieces.*16 logits"):
    flax_model.t5_model(pair.module, vocab_size=17)


def test_leaves_of_the_example_tree():
  assert list(itertools.chain(paths_to_leaves(TREE))) == [[0, 1, 3], [0, 1, 4], [0, 2, 5, 6]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_request_of_padding_alone_is_finite_in_half_precision(dtype):
  """-1e10 is -inf in float16, and a softmax over nothing but -inf is NaN."""
  module = t5.T5(dataclasses.replace(fakes.standard_pair().module.config, dtype=dtype))
  variables = fakes.standard_pair().variables
  tokens, mask = jnp.full((2, 4), 3), jnp.array([[False] * 4, [True] * 4])
  encoded = module.apply({"params": variables}, tokens, mask, method=module.encode)
  assert jnp.isfinite(encoded).all()
  weights = t5_decoder.lay_out(variables, module.config)
  state = t5_decoder.start(weights, module.config, encoded, mask, 4)
  logits, _, _ = t5_decoder.score(weights, module.config, state, jnp.zeros((2, 1), jnp.int32), jnp.arange(1))
  assert jnp.isfinite(logits).all()
