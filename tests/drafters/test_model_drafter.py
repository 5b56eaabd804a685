"""`drafters.model`: what it says it drew from is what it drew from, and its cache is complete.

The draft is a table; the laws come from `oracles`, with every
transform switched on, and the uniforms are given. Caches of a T5 draft are
compared with ones from scratch in `test_step.py`.
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import recipes
from specdec.acceptance.rejection import chain_verdict
from specdec.drafters.model import model_drafter
from specdec.interfaces import Context
from specdec.probability import sampling as draw
from tests import fakes
from tests import oracles

V, G, B, L, P = 4, 3, 96, 16, 2
SETTING = dict(
    temperature=[1.0, 0.5, 0.0, 2.0] * (B // 4), top_k=[0, 3, 0, 2] * (B // 4), top_p=[0.9, 0.0, 0.0, 0.0] * (B // 4),
    min_length=[0, 2, 4, 9] * (B // 4), repetition_penalty=[1.0, 1.5, 3.0, 0.7] * (B // 4),
    banned=np.arange(V)[None] == np.array([2, -1, -1, 3] * (B // 4))[:, None],
)  # fmt: skip


def laws_by_hand(table, setting, row, prefix, new):
  """The draft's law after `prefix` (BOS first), of which `new` tokens are new."""
  entry = table[fakes.prefix_number(prefix[1:], V, len(table))]
  banned = np.flatnonzero(setting["banned"][row])
  logits = oracles.numpy_process(
      entry, prefix, new, fakes.EOS, setting["min_length"][row], setting["repetition_penalty"][row], banned
  )
  return oracles.numpy_law(logits, setting["temperature"][row], setting["top_k"][row], setting["top_p"][row])


@pytest.fixture(scope="module")
def proposals():
  """Three proposals: at the start, after full acceptance everywhere, after acceptance of 0 … 3."""
  _, table = fakes.random_tables(5, V, 10)
  table = np.resize(table[0], (1, 997, V))  # Prefixes share entries; the laws stay functions of the prefix.
  generator = np.random.default_rng(0)
  prefix = np.concatenate([np.zeros((B, 1)), generator.integers(2, V, (B, 1))], axis=1).astype(np.int32)
  drafter = model_drafter(fakes.table_model(), G, recipes.sampling_transform(fakes.EOS))
  assert drafter.size == G
  sampling = fakes.settings(B, **SETTING)

  @jax.jit
  def propose(uniforms, params, state, context):
    with mock.patch.object(draw, "uniforms", lambda keys, count: uniforms):
      return drafter.propose(jax.random.split(jax.random.key(0), B), params, state, context)

  prompt = fakes.prompts(B, prefix=prefix)
  state = drafter.init(jnp.asarray(table), prompt, L)
  tokens = np.zeros((B, L), np.int32)
  tokens[:, :P] = prefix
  length = np.full(B, P)
  found = []
  for accepted in (np.full(B, G), np.arange(B) % (G + 1), np.zeros(B, int)):
    uniforms = np.float32(generator.uniform(size=(B, G)))
    context = Context(jnp.asarray(tokens), jnp.asarray(length), jnp.full(B, P), sampling)
    draft, state = propose(uniforms, jnp.asarray(table), state, context)
    found.append((tokens.copy(), length.copy(), uniforms, jax.tree.map(np.asarray, draft)))
    following = generator.integers(2, V, B)
    for row in range(B):
      block = [*np.asarray(draft.tokens)[row, : accepted[row]], following[row]]
      tokens[row, length[row] : length[row] + len(block)] = block
    length = length + accepted + 1
    verdict = chain_verdict(jnp.arange(G)[None] < accepted[:, None], jnp.asarray(following), jnp.zeros((B, G)))
    state = drafter.observe(state, verdict, jnp.asarray(accepted + 1))
  return table[0], found


def test_q_is_the_law_of_the_prefix_under_every_transform(proposals):
  table, found = proposals
  for tokens, length, _, draft in found:
    for row in range(B):
      prefix = tokens[row, : length[row]].tolist()
      for i in range(G):
        expected = laws_by_hand(table, SETTING, row, prefix, len(prefix) - P)
        np.testing.assert_allclose(np.exp(draft.log_q[row, i]), expected, atol=2e-6)
        prefix.append(int(draft.tokens[row, i]))


def test_the_tokens_are_drawn_from_q(proposals):
  """By inverting q at the uniform that was given; exact up to rounding at a cut."""
  _, found = proposals
  for _, _, uniforms, draft in found:
    cumulative = np.cumsum(np.exp(np.float64(draft.log_q)), axis=-1)
    expected = (cumulative <= uniforms[..., None]).sum(-1)
    at_a_cut = np.abs(cumulative - uniforms[..., None]).min(-1) < 1e-6
    np.testing.assert_array_equal(np.where(at_a_cut, draft.tokens, expected), draft.tokens)
    assert (np.take_along_axis(draft.log_q, draft.tokens[..., None], -1) > -np.inf).all()


def test_the_topology_is_the_block_s(proposals):
  _, found = proposals
  assert all(draft.topology.is_chain and draft.topology.size == G + 1 for *_, draft in found)


def test_gamma_must_be_positive():
  with pytest.raises(ValueError, match="gamma"):
    model_drafter(fakes.table_model(), 0, recipes.sampling_transform())
