"""`networks.cache` against plain loops over slots, with NaN in every slot that must not be read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.networks import cache as cache_lib

LAYERS, HEADS, SIZE, LENGTH = 2, 2, 3, 12


def filled(batch, length, pending, seed=0):
  """A cache whose written slots hold random numbers, and whose others hold NaN."""
  cache = cache_lib.empty(LAYERS, batch, HEADS, SIZE, LENGTH, jnp.float32)
  generator = np.random.default_rng(seed)
  written = np.arange(LENGTH) < (np.asarray(length) + pending)[:, None]
  fill = lambda b: jnp.where(written[:, None, :, None], np.float32(generator.normal(size=b.shape)), jnp.nan)
  cache = jax.tree.map(lambda b: fill(b) if b.ndim == 4 else b, cache)
  return cache._replace(length=jnp.asarray(length, jnp.int32), pending=jnp.int32(pending))


def buffers(cache):
  return [np.asarray(b) for b in (*cache.keys, *cache.values)]


def test_empty():
  cache = cache_lib.empty(3, 2, HEADS, SIZE, LENGTH, jnp.bfloat16)
  assert len(cache.keys) == len(cache.values) == 3 and cache.buffer_length == LENGTH
  assert cache.length.tolist() == [0, 0] and int(cache.pending) == 0
  assert all(b.dtype == jnp.bfloat16 and b.shape[0] == 2 for b in cache.keys)


@pytest.mark.parametrize("batch", [1, 3])
def test_write_overwrites_its_slots_and_no_other(batch):
  generator = np.random.default_rng(1)
  buffer = np.full((batch, HEADS, LENGTH, SIZE), np.nan, np.float32)  # Adding to it would keep the NaN.
  new = np.float32(generator.normal(size=(batch, HEADS, 4, SIZE)))
  start = generator.integers(0, LENGTH - 3, batch).astype(np.int32)
  expected = buffer.copy()
  for row in range(batch):
    expected[row, :, start[row] : start[row] + 4] = new[row]
  np.testing.assert_array_equal(cache_lib.write(jnp.asarray(buffer), jnp.asarray(new), jnp.asarray(start)), expected)


def test_write_keeps_the_dtype_of_the_buffer():
  buffer = jnp.zeros((1, HEADS, LENGTH, SIZE), jnp.bfloat16)
  assert cache_lib.write(buffer, jnp.ones((1, HEADS, 1, SIZE)), jnp.array([2])).dtype == jnp.bfloat16


def test_commit_moves_nothing():
  cache = filled(3, [2, 0, 5], 4)
  after = cache_lib.commit(cache, jnp.array([4, 0, 1]))
  assert after.length.tolist() == [6, 0, 6] and int(after.pending) == 0
  for one, other in zip(buffers(after), buffers(cache)):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("path,count", [
    ([[0, 1, 2], [0, 2, 4], [0, 3, 4]], [3, 3, 3]),
    ([[0, 4, 4], [0, 1, 3], [0, 0, 0]], [2, 1, 0]),  # Beyond `count` the path may hold anything.
    ([[4, 3, 2], [1, 0, 0], [2, 4, 1]], [3, 2, 3]),  # Not in order of the slots.
])  # fmt: skip
def test_commit_path_keeps_the_path(path, count):
  length, pending = np.array([2, 0, 6]), 5
  cache = filled(3, length, pending)
  after = cache_lib.commit_path(cache, jnp.asarray(path, jnp.int32), jnp.asarray(count, jnp.int32))
  assert after.length.tolist() == (length + count).tolist() and int(after.pending) == 0
  for one, other in zip(buffers(after), buffers(cache)):
    for row in range(3):
      kept = [*range(length[row]), *(length[row] + p for p in path[row][: count[row]])]
      np.testing.assert_array_equal(one[row, :, : len(kept)], other[row][:, kept])


def test_commit_path_of_a_chain_is_commit():
  cache = filled(2, [1, 4], 5)
  path = jnp.broadcast_to(jnp.arange(5, dtype=jnp.int32), (2, 5))
  one, other = cache_lib.commit_path(cache, path, jnp.array([3, 5])), cache_lib.commit(cache, jnp.array([3, 5]))
  assert one.length.tolist() == other.length.tolist()
  for a, b in zip(buffers(one), buffers(other)):
    np.testing.assert_array_equal(a, b)
