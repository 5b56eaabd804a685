"""`trees.dyspec` and `trees.static` against plain Python: a heap, a loop over layers, and brute force.

What the draft says is a table by the path of a node (the ranks of its
ancestors), the same for the library and for the oracle.
"""

import functools
import heapq
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from specdec.trees import dyspec
from specdec.trees import growth as growth_lib
from specdec.trees import static
from specdec.trees import topology
from tests.trees import walks

SIZE, CHILDREN = 7, 4


@functools.cache
def compiled(grow):
  return jax.jit(grow), jax.jit(growth_lib.mark_scored)


@functools.cache
def constructions():
  """The same trees with different groupings of the calls."""
  greedy = {w: dyspec.dyspec_growth(SIZE, width=w, children=CHILDREN) for w in (1, 3, SIZE)}
  layered = {w: dyspec.dyspec_threshold_growth(SIZE, 0.1, width=w, children=CHILDREN) for w in (2, SIZE)}
  shallow = dyspec.dyspec_growth(SIZE, width=2, max_depth=2, children=CHILDREN)
  return greedy, layered, shallow


def run(growth, says):
  """Runs a construction as a drafter would. `says(path)`: chances [K]; a candidate's token is its rank.

  Returns:
    The tree, and the calls that were needed.
  """
  grow, mark = compiled(growth.grow)
  tree = growth_lib.seed(growth)
  paths, calls = {0: ()}, 0

  def tell(tree, node, row):
    chance = np.asarray(says(paths[node]), np.float32)
    tokens = np.where(chance > 0, np.arange(len(chance)), growth_lib.NO_TOKEN)
    return tree._replace(candidates=tree.candidates.at[row].set(tokens), chance=tree.chance.at[row].set(chance))

  def learn(tree):
    for node in range(1, int(tree.size)):
      paths[node] = (*paths[int(tree.parents[node])], int(tree.tokens[node]))

  scored = np.full(growth.width, growth_lib.NO_NODE)
  scored[0] = 0
  tree, frontier = grow(tell(tree, 0, 0), 0, scored)
  while (np.asarray(frontier) != growth_lib.NO_NODE).any() and calls < growth.calls:
    learn(tree)
    for i, node in enumerate(np.asarray(frontier)):
      if node != growth_lib.NO_NODE:
        assert tree.row[node] == growth_lib.UNSCORED
        tree = tell(tree, int(node), 1 + calls * growth.width + i)
    tree = mark(tree, frontier, calls)
    calls += 1
    tree, frontier = grow(tree, calls, frontier)
  learn(tree)
  return tree, paths, calls


def table(seed, zero=0.0):
  """Chances of each path: random, some exactly 0 from some rank on."""

  @functools.cache
  def says(path):
    generator = np.random.default_rng([seed, *(p + 1 for p in path)])
    chance = np.float32(generator.beta(1, 2, CHILDREN))
    if generator.random() < zero:
      chance[generator.integers(CHILDREN) :] = 0
    return chance

  return says


def heap(says, size, max_depth=99):
  """Algorithm 1 with a heap: paths in the order of their drawing, and their values."""
  places, found, values = [(-1.0, 0, ())], [], []  # value, number of the place, path of its node
  counter, drawn = itertools.count(1), {}
  while places and len(found) < size:
    value, _, path = heapq.heappop(places)
    value, rank = -value, drawn.get(path, 0)
    chance = says(path)[rank] if rank < CHILDREN else 0
    if chance <= 0:
      continue
    drawn[path] = rank + 1
    found.append((*path, rank))
    values.append(value)
    heapq.heappush(places, (-value * (1 - chance), next(counter), path))
    if len(path) + 1 < max_depth:
      heapq.heappush(places, (-value * chance, next(counter), (*path, rank)))
  return found, values


def layers(says, size, threshold):
  """Algorithm 2 without a cap, as sets: every place whose value is at least the threshold."""
  found = []

  def walk(path, value):
    for rank, chance in enumerate(says(path)):
      if value < threshold or chance <= 0:
        return
      found.append((*path, rank))
      walk((*path, rank), value * chance)
      value *= 1 - chance

  walk((), 1.0)
  return found


def path_list(tree, paths):
  return [paths[node] for node in range(1, int(tree.size))]


def check_shape(tree):
  """Masks and depths of what was grown, against a walk to the root."""
  shape = topology.from_parent_arrays(tree.parents)
  size = int(tree.size)
  for node in range(tree.parents.shape[0]):
    line = [node]
    while tree.parents[line[-1]] != topology.NO_PARENT:
      line.append(int(tree.parents[line[-1]]))
    assert np.flatnonzero(shape.mask[node]).tolist() == sorted(line)
    assert shape.depth[node] == len(line) - 1
    if node < size:
      assert tree.depth[node] == len(line) - 1
    else:
      assert tree.parents[node] == topology.NO_PARENT


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), zero=st.sampled_from([0.0, 0.5]))
def test_greedy_is_the_heap_s_tree_for_every_width(seed, zero):
  says = table(seed, zero)
  expected, values = heap(says, SIZE)
  needed = []
  for growth in constructions()[0].values():
    tree, paths, calls = run(growth, says)
    assert path_list(tree, paths) == expected
    found = np.asarray(tree.value)[1 : int(tree.size)]
    np.testing.assert_allclose(found, values, rtol=1e-5)
    assert (np.diff(found) <= 1e-7).all()  # Values fall in the order of drawing.
    check_shape(tree)
    needed.append(calls)
  assert needed[0] >= needed[1] >= needed[2]
  tree, paths, _ = run(constructions()[2], says)
  assert path_list(tree, paths) == heap(says, SIZE, max_depth=2)[0]


def closed_sets(says, size):
  """Every set of `size` places that holds the parent and the earlier sibling of each, with the sum of their values."""
  value = lambda path: 1.0 if not path else value_of(path)

  @functools.cache
  def value_of(path):
    parent, rank = path[:-1], path[-1]
    inherited = 1.0 if not parent else value_of(parent) * says(parent[:-1])[parent[-1]]
    return inherited * np.prod([1 - c for c in says(parent)[:rank]])

  best = 0.0

  def extend(chosen, frontier, total):
    nonlocal best
    if len(chosen) == size:
      best = max(best, total)
      return
    for i, path in enumerate(frontier):
      after = frontier[i + 1 :]
      if path[-1] + 1 < CHILDREN:
        after = after + [(*path[:-1], path[-1] + 1)]
      extend(chosen + [path], after + [(*path, 0)], total + value(path))

  extend([], [(0,)], 0.0)
  return best


@pytest.mark.parametrize("seed", range(4))
def test_no_tree_of_the_size_is_worth_more(seed):
  """Appendix D, by brute force over all trees of that size."""
  says = table(seed)
  tree, _, _ = run(constructions()[0][3], says)
  total = float(np.asarray(tree.value)[1 : int(tree.size)].sum())
  assert abs(total - closed_sets(says, SIZE)) < 1e-5


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), zero=st.sampled_from([0.0, 0.5]))
def test_threshold_fills_the_places_above_it(seed, zero):
  says = table(seed, zero)
  expected = layers(says, SIZE, 0.1)
  for growth in constructions()[1].values():
    tree, paths, _ = run(growth, says)
    found = path_list(tree, paths)
    check_shape(tree)
    assert len(set(found)) == len(found) == min(len(expected), SIZE) and set(found) <= set(expected)
    if len(expected) <= SIZE:
      assert sorted(found) == sorted(expected)
    if growth.width == SIZE:  # Whole layers: nodes stand by depth, the last layer holds its most valuable places.
      assert [len(p) for p in found] == sorted(len(p) for p in found)
      left = [p for p in expected if p not in found and len(p) <= len(found[-1])]
      assert all(p[-1] or len(p) == len(found[-1]) for p in left)


def test_fewer_calls_fill_the_tree_below_what_was_scored():
  growth = dyspec.dyspec_growth(SIZE, width=1, calls=1, children=SIZE)
  says = lambda path: [0.9] * SIZE
  tree, paths, calls = run(growth, says)
  assert calls == 1 and int(tree.size) == SIZE + 1
  assert set(path_list(tree, paths)) == {(0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2)}


@pytest.mark.parametrize("build,match", [
    (lambda: dyspec.dyspec_growth(0), "size"),
    (lambda: dyspec.dyspec_growth(4, width=0), "width"),
    (lambda: dyspec.dyspec_threshold_growth(4, 0.0), "threshold"),
    (lambda: dyspec.dyspec_threshold_growth(4, 0.1, calls=0), "calls"),
    (lambda: static.static_growth([-1]), "parents"),
    (lambda: static.static_growth([-1, 0, 1, 0]), "ordered by depth"),
    (lambda: static.k_ary(0, 2), "branches"),
    (lambda: static.by_layers([]), "expansion"),
    (lambda: static.from_paths([[0], [0]]), "once"),
    (lambda: static.from_paths([[1]]), "earlier sibling"),
    (lambda: static.from_paths([[0, 0]]), "parent"),
])  # fmt: skip
def test_doors(build, match):
  with pytest.raises(ValueError, match=match):
    build()


def test_static_trees():
  assert static.k_ary(3, 1) == [-1, 0, 0, 0] and static.k_ary(1, 3) == [-1, 0, 1, 2]
  assert static.from_paths([[0], [0, 0], [1], [0, 1], [0, 0, 0]]) == [-1, 0, 0, 1, 1, 3]
  growth = static.static_growth(static.k_ary(2, 3))
  assert (growth.size, growth.width, growth.calls, growth.children) == (14, 4, 2, 2)
  tree, paths, calls = run(growth, lambda path: [0.5, 0.5])
  assert calls == 2
  assert path_list(tree, paths) == [p for d in (1, 2, 3) for p in itertools.product((0, 1), repeat=d)]
  assert static.static_growth([-1, 0]).calls == 0
  assert static.static_growth([-1, 0, 1]).topology.is_chain


def test_the_oracle_grows_the_heap_s_tree():
  """`walks.greedy`, which the exactness tests enumerate with, against the heap above: one peaked draw."""
  q = lambda prefix: np.array([0.6, 0.3, 0.1])
  trees = list(walks.greedy(q, 4))
  assert abs(sum(t.mass for t in trees) - 1) < 1e-12
  tree = next(t for t in trees if t.tokens[1:] == [0, 0, 1, 0])
  # Values: the root's first child 1; below it 0.6, beside it 0.4, below that 0.36.
  np.testing.assert_allclose(tree.values[1:], [1.0, 0.6, 0.4, 0.36])
