"""`trees.topology` against a plain walk from every node to the root."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from specdec.trees import topology

trees = st.lists(st.integers(0, 1000), max_size=12).map(lambda draws: [-1] + [d % (i + 1) for i, d in enumerate(draws)])


def ancestors(parents, node):
  found = [node]
  while parents[found[-1]] != topology.NO_PARENT:
    found.append(parents[found[-1]])
  return found


@settings(max_examples=100, deadline=None, derandomize=True)
@given(parents=trees)
def test_depths_and_ancestors(parents):
  tree = topology.from_parents(parents)
  assert tree.size == len(parents) and tree.parents.tolist() == parents
  for node in range(len(parents)):
    line = ancestors(parents, node)
    assert tree.depth[node] == len(line) - 1
    assert np.flatnonzero(tree.mask[node]).tolist() == sorted(line)
  assert tree.is_chain == (parents == list(range(-1, len(parents) - 1)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_chain(size):
  tree = topology.chain(size)
  assert tree.is_chain and tree.parents.tolist() == list(range(-1, size - 1))
  assert tree.depth.tolist() == list(range(size))
  np.testing.assert_array_equal(tree.mask, np.tril(np.ones((size, size), bool)))


@pytest.mark.parametrize("parents", [[], [0], [-1, 1], [-1, 2, 0], [-1, -1], [-1, 0, -2], [[-1, 0]]])
def test_a_parent_must_come_first(parents):
  with pytest.raises(ValueError, match="parents"):
    topology.from_parents(parents)


def test_a_chain_needs_a_node():
  with pytest.raises(ValueError, match="chain"):
    topology.chain(0)
