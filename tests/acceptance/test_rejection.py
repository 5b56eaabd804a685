"""`acceptance.rejection.decide`: its output law is the target's, exactly.

Every draft is enumerated and weighted by its probability, and the uniforms'
cube is cut where the formulas of the paper, in float64 NumPy, say that the
answer may change. The real function is asked at several points of every cell,
must answer alike at all of them, and is weighted by the cell's volume. What a
step leaves open is then drawn from the target, so that the law of all G + 1
tokens of a block is compared jointly, to 1e-6.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.acceptance import rejection
from specdec.interfaces import Draft, Law
from specdec.probability.transforms import sampling
from specdec.trees import topology
from tests import oracles

decide = jax.jit(rejection.decide)
TOLERANCE = 1e-6


def log(x):
  with np.errstate(divide="ignore"):
    return np.float32(np.log(x))


class Laws:
  """Conditional laws p and q of every prefix, as dictionaries from prefixes to [V]."""

  def __init__(self, vocab, gamma, seed, kind="random"):
    generator = np.random.default_rng(seed)
    self.vocab, self.gamma = vocab, gamma
    self.p, self.q = {}, {}
    for depth in range(gamma + 1):
      for prefix in itertools.product(range(vocab), repeat=depth):
        p, q = generator.dirichlet(np.ones(vocab)), generator.dirichlet(np.ones(vocab))
        if kind == "holes":  # Tokens that one of them, or both, cannot emit.
          p[generator.integers(vocab)] = 0
          q[generator.integers(vocab)] = 0
        if kind == "equal" or (kind == "holes" and generator.random() < 0.2):
          q = p
        if kind == "disjoint":
          p, q = np.eye(vocab)[generator.permutation(vocab)[:2]]
        self.p[prefix], self.q[prefix] = p / p.sum(), q / q.sum()

  def drafts(self):
    """Drafts with their probability."""
    for tokens in itertools.product(range(self.vocab), repeat=self.gamma):
      mass = np.prod([self.q[tokens[:i]][x] for i, x in enumerate(tokens)])
      if mass > 0:
        yield tokens, mass


def decide_all(uniforms, tokens, log_q, log_p, lenience):
  """`decide` in batches of one size, so that it compiles once for each V and G."""
  size, parts = 1024, []
  setting = sampling(size, temperature=1.0, lenience=lenience)
  for start in range(0, len(tokens), size):
    pad = lambda x: np.resize(x[start : start + size], (size, *x.shape[1:]))
    draft = Draft(pad(tokens), topology.chain(tokens.shape[1] + 1), pad(log_q))
    verdict = decide(pad(uniforms), draft, Law(pad(log_p), pad(log_p)), setting)
    parts.append(jax.tree.map(np.asarray, verdict))
  return jax.tree.map(lambda *x: np.concatenate(x)[: len(tokens)], *parts)


def ask(laws, lenience=1.0, points=3):
  """Asks `decide` in every cell of every draft.

  Returns:
    The law of what a step emits, and rows (mass, tokens drafted, count,
    acceptance [G]), one a cell.
  """
  generator = np.random.default_rng(0)
  gamma = laws.gamma
  drafts, masses, uniforms, ps, qs = [], [], [], [], []
  for tokens, mass in laws.drafts():
    p = np.stack([laws.p[tokens[:i]] for i in range(gamma + 1)])
    q = np.stack([laws.q[tokens[:i]] for i in range(gamma)])
    volumes, inside = oracles.cells(oracles.accept_edges(tokens, p, q, lenience), points, generator)
    assert 1 - volumes.sum() < 1e-7 + 1e-6 * (volumes.size < 4)
    repeat = lambda x: np.broadcast_to(x, (len(volumes), *np.shape(x)))
    drafts.append(repeat(np.int32(tokens)))
    masses.append(mass * volumes)
    uniforms.append(inside)
    ps.append(repeat(p))
    qs.append(repeat(q))
  join = lambda parts: np.repeat(np.concatenate(parts), points, axis=0)
  tokens, mass = join(drafts), np.concatenate(masses)
  batch = len(tokens)
  uniforms = np.concatenate(uniforms).reshape(batch, gamma + 1)
  verdict = decide_all(uniforms, tokens, log(join(qs)), log(join(ps)), lenience)
  np.testing.assert_array_equal(verdict.path, np.broadcast_to(1 + np.arange(gamma), (batch, gamma)))
  grouped = lambda x: np.asarray(x).reshape(len(mass), points, *np.shape(x)[1:])
  counts, following, acceptance = grouped(verdict.count), grouped(verdict.next_token), grouped(verdict.acceptance)
  assert (counts == counts[:, :1]).all() and (following == following[:, :1]).all(), "a cell with two answers"
  law, rows = {}, []
  for i, m in enumerate(mass):
    x, n = tuple(tokens[i * points].tolist()), int(counts[i, 0])
    out = (*x[:n], int(following[i, 0]))
    law[out] = law.get(out, 0.0) + m
    rows.append((m, x, n, acceptance[i, 0]))
  return law, rows


def assert_joint_law(laws, law, conditional):
  """The G + 1 tokens of a block, jointly, and each prefix of them."""
  for length in range(1, laws.gamma + 2):
    found = oracles.continued(law, conditional, length)
    for tokens in itertools.product(range(laws.vocab), repeat=length):
      exact = np.prod([conditional(tokens[:i])[x] for i, x in enumerate(tokens)])
      assert abs(found.get(tokens, 0.0) - exact) < TOLERANCE, (tokens, found.get(tokens), exact)


@pytest.mark.parametrize("kind", ["random", "holes", "equal", "disjoint"])
@pytest.mark.parametrize("vocab,gamma", [(3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3)])
def test_output_law_is_the_target_s(vocab, gamma, kind):
  laws = Laws(vocab, gamma, seed=10 * vocab + gamma, kind=kind)
  law, rows = ask(laws, points=2 if vocab**gamma == 64 else 3)
  assert_joint_law(laws, law, laws.p.__getitem__)
  # Theorem 3.5: beta is sum min(p, q), both as reported and as it happens.
  for place in range(gamma):
    reached, kept = {}, {}
    for mass, x, n, acceptance in rows:
      beta = np.minimum(laws.p[x[:place]], laws.q[x[:place]]).sum()
      assert abs(acceptance[place] - beta) < TOLERANCE
      if n >= place:
        reached[x[:place]] = reached.get(x[:place], 0.0) + mass
        kept[x[:place]] = kept.get(x[:place], 0.0) + mass * (n > place)
    for prefix, mass in reached.items():
      beta = np.minimum(laws.p[prefix], laws.q[prefix]).sum()
      assert abs(kept[prefix] - mass * beta) < TOLERANCE


@pytest.mark.parametrize("vocab,gamma", [(3, 1), (3, 2), (4, 2)])
@pytest.mark.parametrize("lenience", [0.9, 0.5, 0.1])
def test_lenience(vocab, gamma, lenience):
  """A.5: the first token's law is min(p/l, q) plus the residual's share; none exceeds p/l."""
  laws = Laws(vocab, gamma, seed=3 * vocab + gamma, kind="holes")
  law, rows = ask(laws, lenience)

  def first(p, q):
    residual = np.maximum(p - lenience * q, 0)
    residual = residual if residual.sum() > 0 else p
    accepted = np.minimum(p / lenience, q)
    return accepted + (1 - accepted.sum()) * residual / residual.sum()

  p, q = laws.p[()], laws.q[()]
  found = np.zeros(vocab)
  for tokens, mass in law.items():
    found[tokens[0]] += mass
  np.testing.assert_allclose(found, first(p, q), atol=TOLERANCE)
  assert (found <= p / lenience + TOLERANCE).all()
  for mass, x, n, acceptance in rows:
    for place in range(gamma):
      beta = np.minimum(laws.p[x[:place]] / lenience, laws.q[x[:place]]).sum()
      assert abs(acceptance[place] - beta) < TOLERANCE
  assert abs(sum(mass for mass, _, n, _ in rows if n > 0) - np.minimum(p / lenience, q).sum()) < TOLERANCE
  if gamma == 2:  # Jointly: the second token follows the lenient law of its own prefix.
    lenient = lambda prefix: first(laws.p[prefix], laws.q[prefix])
    for (a, b), mass in oracles.continued(law, lenient, 2).items():
      assert abs(mass - lenient(())[a] * lenient((a,))[b]) < TOLERANCE


def one(p, q, tokens, uniforms, temperature=1.0, lenience=1.0, log_q=True):
  """`decide` for one row: p [G + 1, V], q [G, V]."""
  draft = Draft(jnp.array([tokens]), topology.chain(len(tokens) + 1), log(np.array([q])) if log_q else None)
  setting = sampling(1, temperature=temperature, lenience=lenience)
  verdict = decide(jnp.array([uniforms], jnp.float32), draft, Law(log(np.array([p])), log(np.array([p]))), setting)
  return int(verdict.count[0]), int(verdict.next_token[0]), np.asarray(verdict.acceptance[0])


def test_a_uniform_of_zero_accepts_nothing_impossible():
  p = [[0.0, 1.0, 0.0], [1 / 3] * 3]
  assert one(p, [[1.0, 0.0, 0.0]], [0], [0.0, 0.5])[:2] == (0, 1)
  assert one(p, [[0.5, 0.5, 0.0]], [1], [0.0, 0.5])[0] == 1


def test_a_uniform_of_exactly_the_ratio_rejects():
  p = [[0.25, 0.75], [0.5, 0.5]]
  assert one(p, [[0.5, 0.5]], [0], [0.5, 0.0])[:2] == (0, 1)
  assert one(p, [[0.5, 0.5]], [0], [np.nextafter(np.float32(0.5), np.float32(0)), 0.0])[0] == 1


def test_a_draft_chosen_with_certainty_has_a_point_mass_for_q():
  p = [[0.25, 0.75], [0.5, 0.5]]
  for u in (0.2, 0.3):
    count, following, acceptance = one(p, [[0.5, 0.5]], [0], [u, 0.9], log_q=False)
    assert (count, following) == ((1, 1) if u < 0.25 else (0, 1))
    np.testing.assert_allclose(acceptance, [0.25])


@pytest.mark.parametrize("lenience,accepted", [(1.0, False), (0.7, False), (0.5, True), (0.1, True)])
def test_lenience_of_a_greedy_row(lenience, accepted):
  """A greedy row accepts what is at least l times as likely as the best; its correction is the argmax."""
  law = Law(log(np.array([[[0.0, 1.0, 0.0]] * 2])), log(np.array([[[0.3, 0.5, 0.2]] * 2])))
  draft = Draft(jnp.array([[0]]), topology.chain(2), log(np.array([[[1.0, 0.0, 0.0]]])))
  for u in (0.0, 0.5, 0.999):
    verdict = decide(jnp.array([[u, u]]), draft, law, sampling(1, temperature=0.0, lenience=lenience))
    assert (int(verdict.count[0]), int(verdict.next_token[0])) == (int(accepted), 1)
    assert float(verdict.acceptance[0, 0]) == float(accepted)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_not_finite_is_never_accepted(temperature):
  """Its token is not drawn from any law; the output must then be the target's own."""
  nan = [[np.nan] * 3]
  p = [[0.5, 0.25, 0.25], [1 / 3] * 3] if temperature else [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
  for u, expected in ((0.1, 0), (0.6, 1), (0.9, 2)):
    count, following, _ = one(p, nan, [0], [0.0, u], temperature)
    assert (count, following) == (0, expected if temperature else 1)


def test_a_target_that_is_not_finite_accepts_nothing():
  for lenience in (1.0, 0.5):
    for temperature in (0.0, 1.0):
      assert one([[np.nan] * 2, [0.5, 0.5]], [[0.5, 0.5]], [0], [0.0, 0.5], temperature, lenience)[0] == 0


def test_rows_do_not_see_each_other():
  generator = np.random.default_rng(6)
  tokens = generator.integers(0, 4, (8, 2)).astype(np.int32)
  p, q = generator.dirichlet(np.ones(4), (8, 3)), generator.dirichlet(np.ones(4), (8, 2))
  uniforms = np.float32(generator.uniform(size=(8, 3)))
  setting = sampling(8, temperature=1.0, lenience=[1.0, 0.5] * 4)
  together = decide(uniforms, Draft(tokens, topology.chain(3), log(q)), Law(log(p), log(p)), setting)
  for row in range(8):
    lenience = float(setting.lenience[row])
    count, following, acceptance = one(p[row], q[row], tokens[row], uniforms[row], lenience=lenience)
    assert (count, following) == (together.count[row], together.next_token[row])
    np.testing.assert_allclose(acceptance, together.acceptance[row], rtol=1e-6)
