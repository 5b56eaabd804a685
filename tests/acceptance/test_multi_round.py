"""`acceptance.multi_round` and `acceptance.k_seq`: the output law of every drawn tree, exactly.

Every tree that a drafter may draw is enumerated with its probability, and every
box of the uniforms in which the walk ends alike (`tests/trees/walks.py`). The
real `decide` is asked in every box; the law of what it emits, continued by the
target, must be the target's to 1e-6.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.acceptance import k_seq
from specdec.acceptance import multi_round
from specdec.acceptance.rejection import decide as decide_chain
from specdec.interfaces import Draft, Law
from specdec.probability.transforms import sampling
from specdec.trees import topology
from tests import oracles
from tests.trees import walks

SIZE, ROWS = 6, 2048  # Drafted nodes, absent ones included; rows of a call.
TOLERANCE = 1e-6


def log(x):
  with np.errstate(divide="ignore"):
    return np.float32(np.log(x))


@functools.cache
def compiled(rule):
  def run(uniforms, tokens, parents, log_q, log_p, temperature, lenience):
    draft = Draft(tokens, topology.from_parent_arrays(parents), None if rule == "certain" else log_q)
    setting = sampling(tokens.shape[0], temperature=temperature, lenience=lenience)
    if rule == "k_seq":
      return k_seq.decide(uniforms, draft, Law(log_p, log_p), setting)
    return multi_round.decide(uniforms, draft, Law(log_p, log_p), setting, replacement=rule == "with")

  return jax.jit(run)


def ask(rule, *arrays, temperature=1.0, lenience=1.0):
  """`decide` in batches of one size, so that it compiles once for each V and rule."""
  parts = []
  for start in range(0, len(arrays[0]), ROWS):
    pad = lambda x: np.resize(x[start : start + ROWS], (ROWS, *x.shape[1:]))
    parts.append(jax.tree.map(np.asarray, compiled(rule)(*map(pad, arrays), temperature, lenience)))
  return jax.tree.map(lambda *x: np.concatenate(x)[: len(arrays[0])], *parts)


class Laws:
  """p and q after every prefix, drawn once."""

  def __init__(self, vocab, seed, kind):
    self.vocab, self.kind = vocab, kind
    self.generator, self.known = np.random.default_rng(seed), {}

  def both(self, prefix):
    if prefix not in self.known:
      p, q = (self.generator.dirichlet(np.ones(self.vocab)) for _ in range(2))
      if self.kind == "holes":  # Tokens that one of them, or both, cannot emit.
        p[self.generator.integers(self.vocab)] = 0
        q[self.generator.integers(self.vocab)] = 0
        q = p if self.generator.random() < 0.2 else q
      self.known[prefix] = p / p.sum(), q / q.sum()
    return self.known[prefix]

  def p(self, prefix):
    return self.both(prefix)[0]

  def q(self, prefix):
    return self.both(prefix)[1]


def arrays_of(trees, laws):
  """Tokens, parents, log q and log p of trees, absent nodes filled in."""
  tokens = np.zeros((len(trees), SIZE), np.int32)
  parents = np.full((len(trees), SIZE + 1), topology.NO_PARENT, np.int32)
  p = np.full((len(trees), SIZE + 1, laws.vocab), 1 / laws.vocab)
  q = np.full((len(trees), SIZE, laws.vocab), 1 / laws.vocab)
  for i, tree in enumerate(trees):
    tokens[i, : len(tree.tokens) - 1], parents[i, : len(tree.parents)] = tree.tokens[1:], tree.parents
    for node in range(len(tree.parents)):
      p[i, node] = laws.p(tree.prefix(node))
      if node < SIZE:
        q[i, node] = laws.q(tree.prefix(node))
  return tokens, parents, log(q), log(p)


def emitted(verdict, tokens):
  """The tokens of each row's path and its next token."""
  path = np.take_along_axis(np.pad(tokens, ((0, 0), (1, 0))), verdict.path, axis=1)
  return [(*row[:n].tolist(), int(t)) for row, n, t in zip(path, verdict.count, verdict.next_token)]


def law_of(rule, trees, laws, ends):
  cells = walks.cells(trees, SIZE, ends)
  arrays = arrays_of(trees, laws)
  index = np.repeat(cells.tree, 2)
  verdict = ask(rule, cells.uniforms, *(x[index] for x in arrays))
  outputs = emitted(verdict, arrays[0][index])
  law = {}
  for i, mass in enumerate(cells.mass):
    assert outputs[2 * i] == outputs[2 * i + 1] or not cells.wide[i], "a box with two answers"
    law[outputs[2 * i]] = law.get(outputs[2 * i], 0.0) + mass
  return law, verdict, cells


def assert_law(law, laws, length):
  for n in range(1, length + 1):
    found = oracles.continued(law, laws.p, n)
    for tokens in itertools.product(range(laws.vocab), repeat=n):
      exact = np.prod([laws.p(tokens[:i])[x] for i, x in enumerate(tokens)])
      assert abs(found.get(tokens, 0.0) - exact) < TOLERANCE, (tokens, found.get(tokens), exact)


SHAPES = {
    "star": [-1, 0, 0, 0],
    "two layers": [-1, 0, 0, 1, 1, 2, 2],
    "uneven": [-1, 0, 0, 1, 0, 3, 3],
    "chain": [-1, 0, 1, 2],
}


@pytest.mark.parametrize("kind", ["random", "holes"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", ["without", "with", "certain"])
def test_output_law_is_the_target_s(rule, shape, kind):
  for vocab in (3, 4):
    if vocab == 4 and len(SHAPES[shape]) > 6 and rule == "with":
      continue  # 4^6 trees say no more than 3^6.
    laws = Laws(vocab, seed=vocab, kind=kind)
    trees = list(walks.fixed(SHAPES[shape], laws.q, replacement=rule == "with"))
    assert abs(sum(t.mass for t in trees) - 1) < 1e-9
    if rule == "certain":  # Any tokens may be chosen, siblings apart; the law must hold for each choice.
      trees = [t._replace(mass=1 / 7) for t in trees[:: max(1, len(trees) // 6)][:7]]
      trees = [t._replace(mass=1 / len(trees)) for t in trees]
    law, verdict, cells = law_of(rule, trees, laws, lambda t: walks.multi_round(t, laws.p, laws.q, rule))
    assert_law(law, laws, 3)


@pytest.mark.parametrize("shape", [[-1, 0, 0, 0, 1, 2, 3], [-1, 0, 0, 1, 2, 3, 4], [-1, 0, 1, 2]])
@pytest.mark.parametrize("kind", ["random", "holes"])
def test_k_seq(shape, kind):
  laws = Laws(3, seed=5, kind=kind)
  rho = jax.jit(k_seq.best_rho)
  bar = functools.cache(lambda p, q, k: float(rho(jnp.float32([p]), jnp.float32([q]), jnp.int32([k]))[0]))
  real = lambda p, q, k: bar(tuple(p), tuple(q), k)
  trees = list(walks.fixed(shape, laws.q, replacement=True))
  law, _, _ = law_of("k_seq", trees, laws, lambda t: walks.k_seq(t, laws.p, laws.q, real))
  assert_law(law, laws, 3)


def test_rho_is_the_smallest_that_is_exact():
  """Against a fine grid, and its defining inequality."""
  generator = np.random.default_rng(1)
  p, q = generator.dirichlet(np.ones(5), 64), generator.dirichlet(np.ones(5), 64)
  for k in (1, 2, 5):
    found = np.asarray(k_seq.best_rho(jnp.float32(p), jnp.float32(q), jnp.full(64, k)))
    grid = np.linspace(1, k, 4001)
    beta = np.minimum(q[:, None], p[:, None] / grid[None, :, None]).sum(-1)
    enough = 1 - (1 - beta) ** k <= grid * beta + 1e-12
    np.testing.assert_allclose(found, grid[enough.argmax(axis=1)], atol=2e-3 * k)


def test_more_siblings_are_accepted_more_often():
  """Sequoia's cover property: with all of the vocabulary drafted without replacement something is always accepted."""
  laws = Laws(4, seed=3, kind="random")
  trees = list(walks.fixed([-1, 0, 0, 0, 0], laws.q, replacement=False))
  _, verdict, cells = law_of("without", trees, laws, lambda t: walks.multi_round(t, laws.p, laws.q, "without"))
  assert abs(cells.mass[verdict.count[::2] == 1].sum() - 1) < 1e-5
  one = list(walks.fixed([-1, 0], laws.q, replacement=False))  # Optimal transport for one draft.
  _, verdict, cells = law_of("without", one, laws, lambda t: walks.multi_round(t, laws.p, laws.q, "without"))
  beta = np.minimum(laws.p(()), laws.q(())).sum()
  assert abs(cells.mass[verdict.count[::2] == 1].sum() - beta) < 1e-5
  np.testing.assert_allclose(verdict.acceptance[:, 0], beta, atol=1e-6)


def test_acceptance_is_the_chance_of_each_sibling():
  """Summed over trees and walks, `acceptance` is the probability that the node is the accepted one."""
  laws = Laws(3, seed=8, kind="random")
  for rule in ("without", "with"):
    trees = list(walks.fixed([-1, 0, 0, 0], laws.q, replacement=rule == "with"))
    _, verdict, cells = law_of(rule, trees, laws, lambda t: walks.multi_round(t, laws.p, laws.q, rule))
    for node in range(3):
      expected = cells.mass[(verdict.count[::2] == 1) & (verdict.path[::2, 0] == node + 1)].sum()
      assert abs((cells.mass * verdict.acceptance[::2, node]).sum() - expected) < 1e-5


def random_rows(seed, temperature_zero=False):
  generator = np.random.default_rng(seed)
  parents = np.stack([[-1, *(int(generator.integers(-1, n)) for n in range(1, SIZE + 1))] for _ in range(ROWS)])
  tokens = generator.integers(0, 3, (ROWS, SIZE)).astype(np.int32)
  q, p = generator.dirichlet(np.ones(3), (ROWS, SIZE)), generator.dirichlet(np.ones(3), (ROWS, SIZE + 1))
  uniforms = np.float32(generator.uniform(size=(ROWS, SIZE + 1)))
  return uniforms, tokens, np.int32(parents), log(q), log(p)


def test_a_chain_is_decided_as_by_rejection():
  uniforms, tokens, _, log_q, log_p = random_rows(2)
  chain = np.tile(np.arange(-1, SIZE, dtype=np.int32), (ROWS, 1))
  for temperature, lenience in ((1.0, 1.0), (1.0, 0.5), (0.0, 1.0), (0.0, 0.5)):
    setting = sampling(ROWS, temperature=temperature, lenience=lenience)
    expected = jax.jit(decide_chain)(uniforms, Draft(tokens, topology.chain(SIZE + 1), log_q), Law(log_p, log_p), setting)
    for rule in ("without", "with"):
      found = ask(rule, uniforms, tokens, chain, log_q, log_p, temperature=temperature, lenience=lenience)
      if temperature:  # With the law of argmax the chain's own p is a point mass, which it is not told here.
        np.testing.assert_array_equal(found.count, expected.count)
        np.testing.assert_array_equal(found.next_token, expected.next_token)
        for row in range(ROWS):
          n = min(int(found.count[row]) + 1, SIZE)
          np.testing.assert_allclose(found.acceptance[row, :n], expected.acceptance[row, :n], atol=1e-6)


def test_a_greedy_row_follows_the_argmax():
  """Against a plain walk; trees in which numbers are missing."""
  uniforms, tokens, parents, log_q, log_p = random_rows(3)
  for rule in ("without", "with", "certain", "k_seq"):
    found = ask(rule, uniforms, tokens, parents, log_q, log_p, temperature=0.0)
    for row in range(300):
      reach = {0: 0}
      for node in range(1, SIZE + 1):
        parent = parents[row, node]
        if parent in reach and tokens[row, node - 1] == log_p[row, parent].argmax():
          reach[node] = reach[parent] + 1
      depth = max(reach.values())
      end = min(n for n, d in reach.items() if d == depth)
      assert found.count[row] == depth
      assert found.path[row, depth - 1] == end if depth else True
      assert found.next_token[row] == log_p[row, end].argmax()


@pytest.mark.parametrize("rule", ["without", "with", "k_seq"])
def test_a_draft_that_is_not_finite_is_never_accepted(rule):
  uniforms, tokens, parents, log_q, log_p = random_rows(4)
  found = ask(rule, uniforms, tokens, parents, np.full_like(log_q, np.nan), log_p)
  assert not found.count.any()
  edges = np.cumsum(np.exp(np.float64(log_p[:, 0])), axis=1)
  expected = (uniforms[:, -1:] > edges).sum(axis=1)
  near = np.abs(edges - uniforms[:, -1:]).min(axis=1) < 1e-5
  np.testing.assert_array_equal(np.where(near, expected, found.next_token), expected)


def test_k_seq_needs_a_law():
  draft = Draft(jnp.zeros((1, 1), jnp.int32), topology.chain(2), None)
  with pytest.raises(ValueError, match="log_q"):
    k_seq.decide(jnp.zeros((1, 2)), draft, Law(jnp.zeros((1, 2, 3)), jnp.zeros((1, 2, 3))), sampling(1, 1.0))
