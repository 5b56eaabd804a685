"""`trees.sequoia` against brute force over every ordered tree of up to 9 nodes."""

import functools

import numpy as np
import pytest

from specdec.trees import sequoia
from specdec.trees import static
from specdec.trees import topology


@functools.cache
def forests(nodes):
  """Every ordered forest of `nodes` nodes, as tuples of trees, a tree being the tuple of its children."""
  if nodes == 0:
    return ((),)
  return tuple(
      (first, *rest)
      for size in range(1, nodes + 1)
      for first in forests(size - 1)
      for rest in forests(nodes - size)
  )


def value(tree, acceptance):
  return 1 + sum(p * value(child, acceptance) for p, child in zip(acceptance, tree))


def depth(tree):
  return max((1 + depth(child) for child in tree), default=0)


def widest(tree):
  return max([len(tree), *(widest(child) for child in tree)])


ACCEPTANCES = ([0.6, 0.2, 0.1], [0.3, 0.3, 0.3], [0.9], [0.5, 0.0, 0.3, 0.1], [0.2] * 5)


def test_all_trees_are_there():
  assert [len(forests(n)) for n in range(7)] == [1, 1, 2, 5, 14, 42, 132]  # Catalan's numbers.


@pytest.mark.parametrize("size", range(1, 9))
def test_best_shape_is_the_best_of_all(size):
  for acceptance in ACCEPTANCES:
    for max_depth in (None, 1, 2, 3):
      fitting = [t for t in forests(size) if widest(t) <= len(acceptance) and depth(t) <= (max_depth or size)]
      if not fitting:
        with pytest.raises(ValueError, match="no tree"):
          sequoia.best_shape(acceptance, size, max_depth)
        continue
      found = sequoia.best_shape(acceptance, size, max_depth)
      assert abs(found.value - max(value(t, acceptance) for t in fitting)) < 1e-12
      assert abs(sequoia.tree_value(found.parents, acceptance) - found.value) < 1e-12
      assert len(found.parents) == size + 1 and found.depth <= (max_depth or size)
      assert found.depth == int(np.asarray(topology.from_parents(found.parents).depth).max())
      static.static_growth(found.parents)  # In the order of layers.


def test_large_trees():
  """Power-law acceptance; value grows, and slower than the number of nodes."""
  acceptance = 0.5 / np.arange(1, 17) ** 2
  values = [sequoia.best_shape(acceptance, n, 12).value for n in (8, 16, 32, 64, 128)]
  assert (np.diff(values) > 0).all() and (np.diff(values) < 1).all()


def test_best_size_maximises_tokens_a_second():
  acceptance, draft = [0.7, 0.15, 0.05], 0.08
  times = {0: 1.0, 2: 1.05, 4: 1.1, 6: 1.3, 8: 2.5}
  best = max(
      value(t, acceptance) / (times[n] + depth(t) * draft)
      for n in (2, 4, 6, 8) for t in forests(n) if widest(t) <= 3
  )  # fmt: skip
  shape, speed = sequoia.best_size(acceptance, times, draft)
  assert abs(speed - best) < 1e-9
  assert len(shape.parents) - 1 == 4
  flat, _ = sequoia.best_size(acceptance, times, 1.0)  # Depth is dear.
  assert flat.depth < shape.depth
  assert sequoia.best_size(acceptance, times, draft, max_depth=2)[0].depth == 2


def test_acceptance_by_rank():
  visited = [[4, 4, 2, 0], [0, 0, 0, 0]]
  accepted = [[2.0, 1.0, 1.5, 0.0], [0.0, 0.0, 0.0, 0.0]]
  np.testing.assert_allclose(sequoia.acceptance_by_rank([-1, 0, 0, 1, 1], visited, accepted), [3.5 / 6, 0.25])
  noisy = sequoia.acceptance_by_rank([-1, 0, 0], [[2, 2]], [[1.8, 0.6]])
  np.testing.assert_allclose(noisy, [0.75, 0.25])


@pytest.mark.parametrize("build,match", [
    (lambda: sequoia.best_shape([0.5, 1.5], 3), "probability"),
    (lambda: sequoia.best_shape([], 3), "probability"),
    (lambda: sequoia.best_shape([0.8, 0.8], 3), "sum"),
    (lambda: sequoia.best_shape([0.5], 0), "size"),
    (lambda: sequoia.best_shape([0.5], 3, max_depth=2), "no tree of depth 2"),
    (lambda: sequoia.best_size([0.5], {0: 1.0}, 0.1), "positive times"),
    (lambda: sequoia.best_size([0.5], {4: 1.0}, 0.0), "positive times"),
    (lambda: sequoia.best_size([0.5], {4: 1.0}, 0.1, max_depth=2), "no tree of depth 2"),
])  # fmt: skip
def test_doors(build, match):
  with pytest.raises(ValueError, match=match):
    build()
