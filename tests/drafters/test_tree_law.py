"""The law of a whole step with a tree, dynamic growth included, exactly; and greedy decoding, with the same programs.

Every tree that a construction may draw is enumerated with its probability
(`tests/trees/walks.py`), and the real step is made to draw it: the randomness
of the drafter is laid open by node. The tree that it then proposes must be the
enumerated one. With every box of the rule's uniforms the law of the committed
tokens, continued by the target, must be the target's to 1e-6.
"""

import functools
import itertools
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.acceptance import k_seq as k_seq_lib
from specdec.acceptance import multi_round
from specdec.drafters import tree as tree_lib
from specdec.interfaces import Params
from specdec.probability import sampling as draw
from specdec.step import speculative_step
from specdec.trees import dyspec
from specdec.trees import specinfer
from specdec.trees import static
from tests import fakes
from tests import oracles
from tests.trees import walks

ROWS, ENTRIES, TABLES, NEVER, ROOM = 1024, 997, 16, -1, 24


class Case(NamedTuple):
  """A construction, its oracle, and its rule."""

  growth: object
  trees: object  # q -> every tree with its mass
  rule: object
  kind: str  # of the oracle of the rule


def parents_of(growth):
  return growth.topology.parents.tolist()


@functools.cache
def case(name):
  without, replaced = multi_round.without_replacement, multi_round.with_replacement
  if name.startswith("greedy"):
    growth = dyspec.dyspec_growth(6, width=2)
    return Case(growth, lambda q: walks.greedy(q, 6), without, "without")
  if name == "shallow":
    growth = dyspec.dyspec_growth(5, width=3, max_depth=2)
    return Case(growth, lambda q: walks.greedy(q, 5, 2), without, "without")
  if name == "threshold":
    growth = dyspec.dyspec_threshold_growth(6, 0.12, width=2)
    return Case(growth, lambda q: walks.layered(q, 6, 0.12, 2), without, "without")
  if name == "sequoia":
    growth = static.static_growth([-1, 0, 0, 0, 1, 1, 2])
    return Case(growth, lambda q: walks.fixed(parents_of(growth), q, False), without, "without")
  if name.startswith("specinfer"):
    growth = specinfer.specinfer_growth((2, 1) if name.endswith("narrow") else (2, 2))
    return Case(growth, lambda q: walks.fixed(parents_of(growth), q, True), replaced, "with")
  growth = specinfer.spectr_growth(2 if name.endswith("narrow") else 3, 2)
  return Case(growth, lambda q: walks.fixed(parents_of(growth), q, True), k_seq_lib.k_seq, "k_seq")


@functools.cache
def program(name, vocab):
  """The step with its randomness laid open, jitted: `(first, others, accepting, params, state) -> state, info, draft`."""
  del vocab  # Of the shapes; named so that programs of two vocabularies are two.
  growth, _, rule, _ = case(name)
  model, seen = fakes.table_model(), []

  def spy(key, draft, law, sampling):
    seen.append(draft)
    return rule(key, draft, law, sampling)

  transform = fakes.temperature_transform
  step = speculative_step(model, tree_lib.tree_drafter(model, growth, transform), spy, transform, NEVER)

  @jax.jit
  def run(first, others, accepting, params, state):
    uniforms = lambda keys, count: first if count == growth.size else accepting
    by_node = lambda keys, node, shape, gumbel: jnp.take_along_axis(others, node[..., None], axis=1)
    with mock.patch.object(draw, "uniforms", uniforms), mock.patch.object(tree_lib, "siblings_noise", by_node):
      keys = jax.random.split(jax.random.key(0), ROWS)
      after, info = step.step(keys, params, state)
    return after, info, seen.pop()

  @functools.partial(jax.jit, static_argnums=2)
  def init(params, prompt, room, temperature):
    sampling = fakes.settings(ROWS, temperature=temperature)
    return step.init(params, prompt, sampling, jnp.full((ROWS,), room, jnp.int32), room)

  return init, run, growth


def tables(vocab, seed):
  generator = np.random.default_rng(seed)
  target = generator.normal(size=(TABLES, ENTRIES, vocab)) * 1.5
  draft = target + generator.normal(size=target.shape)
  return Params(jnp.asarray(target, jnp.float32), jnp.asarray(draft, jnp.float32))


def randomness(growth, trees, q, vocab):
  """What makes the drafter draw each of the trees: of each node the uniform of its first child, and of the others."""
  first = np.full((len(trees), growth.size), 0.5)
  others = np.zeros((len(trees), growth.size, growth.children - 1 if growth.replacement else vocab))
  middle = lambda law, token: law[:token].sum() + 0.5 * law[token]
  for i, tree in enumerate(trees):
    for node in range(min(len(tree.parents), growth.size)):
      children = [tree.tokens[n] for n in tree.children(node)]
      if not children:
        continue
      law = q(tree.prefix(node))
      first[i, node] = middle(law, children[0])
      if growth.replacement:
        others[i, node, : len(children) - 1] = [middle(law, t) for t in children[1:]]
      else:  # The race: each runs with log q + noise.
        rest = [t for t in range(vocab) if t not in children]
        score = np.empty(vocab)
        score[children + rest] = -2.0 * np.arange(vocab)
        others[i, node] = score - np.where(law > 0, np.log(np.maximum(law, 1e-30)), 0)
  return np.float32(first), np.float32(others)


def rho(p, q, k):
  return float(best_rho(jnp.float32([p]), jnp.float32([q]), jnp.int32([k]))[0])


best_rho = jax.jit(k_seq_lib.best_rho)


@pytest.mark.parametrize("name,vocab", [
    ("greedy", 3), ("greedy", 4), ("shallow", 3), ("threshold", 3), ("threshold", 4), ("sequoia", 3), ("sequoia", 4),
    ("specinfer", 3), ("specinfer narrow", 4), ("spectr", 3), ("spectr narrow", 4),
])  # fmt: skip
def test_law_of_a_step_is_the_target_s(name, vocab):
  growth, enumerate_trees, _, kind = case(name)
  init, run, _ = program(name, vocab)
  params = tables(vocab, seed=11)
  p, q = (functools.cache(fakes.table_law(np.asarray(table)[0])) for table in params)
  trees = list(enumerate_trees(q))
  assert abs(sum(t.mass for t in trees) - 1) < 1e-9
  assert growth.topology is not None or len({tuple(t.parents) for t in trees}) > 2  # The shape does depend on the draws.
  ends = lambda t: walks.k_seq(t, p, q, rho) if kind == "k_seq" else walks.multi_round(t, p, q, kind)
  points = 2 if len(trees) < 1000 else 1
  cells = walks.cells(trees, growth.size, ends, points)
  first, others = randomness(growth, trees, q, vocab)
  index = np.repeat(cells.tree, points)
  state = init(params, fakes.prompts(ROWS), ROOM, 1.0)
  law = {}
  for start in range(0, len(index), ROWS):
    pad = lambda x: np.resize(x[start : start + ROWS], (ROWS, *x.shape[1:]))
    rows = pad(index)
    _, info, draft = jax.tree.map(np.asarray, run(first[rows], others[rows], pad(cells.uniforms), params, state))
    parents = np.broadcast_to(draft.topology.parents, (ROWS, growth.size + 1))
    outputs = oracles.outputs(info.tokens, info.committed)
    for i in range(min(ROWS, len(index) - start)):
      tree = trees[rows[i]]
      size = len(tree.parents)
      assert parents[i, :size].tolist() == tree.parents and (parents[i, size:] == -1).all()
      assert info.draft[i, : size - 1].tolist() == tree.tokens[1:]
      assert info.drafted[i] == size - 1
      cell, point = divmod(start + i, points)
      if point == 0:
        law[outputs[i]] = law.get(outputs[i], 0.0) + cells.mass[cell]
      else:
        assert outputs[i] == outputs[i - 1] or not cells.wide[cell], "a box with two answers"
  for length in (1, 2, 3):
    found = oracles.continued(law, p, length)
    for tokens in itertools.product(range(vocab), repeat=length):
      exact = np.prod([p(tokens[:i])[x] for i, x in enumerate(tokens)])
      assert abs(found.get(tokens, 0.0) - exact) < 1e-6, (tokens, found.get(tokens), exact)


@pytest.mark.parametrize("name,vocab", [("greedy", 4), ("threshold", 3), ("sequoia", 3), ("specinfer", 3), ("spectr", 3)])
def test_greedy_decoding_and_what_a_step_reports(name, vocab):
  """Many steps at temperature 0, with the programs above: the plain walk's tokens, and counters recomputed by hand."""
  init, run, growth = program(name, vocab)
  params = tables(vocab, seed=12)
  prompt = fakes.prompts(ROWS, np.arange(ROWS) % TABLES)
  state = init(params, prompt, ROOM, 0.0)
  generator = np.random.default_rng(0)
  shape = (ROWS, growth.size, growth.children - 1 if growth.replacement else vocab)
  noise = lambda *s: np.float32(generator.uniform(size=s))
  steps, deepest = 0, 0
  while np.asarray(state.running).any():
    before = np.asarray(state.length)
    after, info, draft = run(noise(*shape[:2]), noise(*shape), noise(ROWS, growth.size + 1), params, state)
    parents = np.broadcast_to(draft.topology.parents, (ROWS, growth.size + 1))
    for row in range(TABLES):
      if not state.running[row]:
        assert not info.drafted[row] and not info.visited[row].any()
        continue
      kept = np.asarray(after.tokens)[row, before[row] : int(after.length[row])].tolist()
      path, visited = [0], set()
      while True:  # Down the tree along the committed tokens.
        children = [n for n in range(1, growth.size + 1) if parents[row, n] == path[-1]]
        if len(path) <= len(kept):
          visited |= set(children)
        following = [n for n in children if len(path) <= len(kept) and info.draft[row, n - 1] == kept[len(path) - 1]]
        if not following:
          break
        path.append(following[0])
      assert info.committed[row] == len(kept)
      assert info.accepted[row] == min(len(path) - 1, len(kept))
      assert set((np.flatnonzero(info.visited[row]) + 1).tolist()) == visited
      assert info.drafted[row] == (parents[row] >= 0).sum()
      deepest = max(deepest, len(path) - 1)
    state, steps = after, steps + 1
  assert deepest >= 2 and steps < ROOM
  for row in range(TABLES):
    expected = fakes.greedy_walk(np.asarray(params.target)[row], ROOM - 1, NEVER)
    assert tuple(state.tokens[row, 1:ROOM].tolist()) == expected


def test_siblings_noise_is_of_the_row_and_the_node_alone():
  keys = jax.random.split(jax.random.key(3), 2)
  both = tree_lib.siblings_noise(keys, jnp.array([[4, 0], [1, 4]]), (3,), True)
  one = tree_lib.siblings_noise(keys[:1], jnp.array([[0, 2, 4]]), (3,), True)
  np.testing.assert_array_equal(both[0, 0], one[0, 2])
  np.testing.assert_array_equal(both[0, 1], one[0, 0])
  assert not np.array_equal(both[0, 0], both[1, 1])


def test_draft_temperature_must_be_positive():
  with pytest.raises(ValueError, match="draft_temperature"):
    tree_lib.tree_drafter(fakes.table_model(), dyspec.dyspec_growth(2), fakes.temperature_transform, 0.0)
