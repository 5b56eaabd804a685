"""`acceptance.greedy` against a plain walk, and against `acceptance.rejection` at temperature 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.acceptance import greedy, rejection
from specdec.interfaces import Draft, Law
from specdec.probability import transforms
from specdec.trees import topology

rule = jax.jit(greedy.greedy)
decide = jax.jit(rejection.decide)
B, G, V = 64, 4, 5


@pytest.fixture(scope="module")
def block():
  """Logits with ties, and drafts that often are the argmax."""
  generator = np.random.default_rng(0)
  logits = np.round(np.float32(generator.normal(size=(B, G + 1, V))) * 2) / 2
  best = logits[:, :-1].argmax(-1)
  tokens = np.where(generator.random((B, G)) < 0.7, best, generator.integers(0, V, (B, G))).astype(np.int32)
  return logits, tokens


def walk(logits, tokens, lenience):
  probability = np.exp(np.float64(logits)) / np.exp(np.float64(logits)).sum(-1, keepdims=True)
  count = 0
  while count < G:
    here = probability[count]
    argmax = int(np.argmax(logits[count]))
    lenient = lenience < 1 and here[tokens[count]] >= lenience * here.max()
    if tokens[count] != argmax and not lenient:
      break
    count += 1
  return count, int(np.argmax(logits[count]))


@pytest.mark.parametrize("lenience", [1.0, 0.62, 0.33])
def test_is_a_plain_walk_and_equals_rejection_at_temperature_zero(block, lenience):
  logits, tokens = block
  setting = transforms.sampling(B, temperature=0.0, lenience=lenience)
  law = Law(transforms.to_law(jnp.asarray(logits), setting), jnp.asarray(logits))
  log_q = jnp.log(jax.nn.one_hot(tokens, V))
  draft = Draft(jnp.asarray(tokens), topology.chain(G + 1), log_q)
  found = rule(None, draft, law, setting)
  uniforms = np.float32(np.random.default_rng(1).uniform(size=(B, G + 1)))
  general = decide(uniforms, draft, law, setting)
  for row in range(B):
    expected = walk(logits[row], tokens[row], lenience)
    assert (int(found.count[row]), int(found.next_token[row])) == expected, row
    assert (int(general.count[row]), int(general.next_token[row])) == expected, row
  np.testing.assert_array_equal(found.path, general.path)
  assert len(set(found.count.tolist())) == G + 1  # Every length of acceptance was tried.


def test_nan_stops_the_walk(block):
  logits, tokens = block
  logits = logits.copy()
  tokens = logits[:, :-1].argmax(-1).astype(np.int32)
  logits[:, 2] = np.nan
  setting = transforms.sampling(B, lenience=0.5)
  found = rule(None, Draft(jnp.asarray(tokens), topology.chain(G + 1), None), Law(None, jnp.asarray(logits)), setting)
  assert found.count.tolist() == [2] * B
