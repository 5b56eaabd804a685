"""`drafters.ngram`: its law against a dictionary of counts, its proposals, and the law of a whole step.

The oracle counts with dictionaries and interpolates by recursion, in float64.
"""

import collections
import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import recipes
from specdec.drafters import ngram
from specdec.drafters import ngram_counts
from specdec.interfaces import Context, Params
from specdec.probability import sampling as draw
from specdec.trees import topology
from tests import fakes
from tests import oracles

V = 4


def texts_of(seed, vocab, count=60, longest=7):
  generator = np.random.default_rng(seed)
  table = generator.dirichlet(np.full(vocab, 0.3), vocab)
  found = []
  for _ in range(count):
    text = [int(generator.integers(vocab))]
    while len(text) < generator.integers(1, longest):
      text.append(int(generator.choice(vocab, p=table[text[-1]])))
    found.append([*text, 1])
  return found


def counted(texts, vocab, order, **how):
  counter = ngram_counts.Counter(vocab, order)
  counter.add(texts[:20])
  counter.add(texts[20:])
  return counter.tables(**how)


def oracle(texts, vocab, order, max_successors=0, min_count=1):
  """`recent tokens -> law [V]` by the definition."""
  counts = [collections.Counter() for _ in range(order + 1)]
  for text in texts:
    whole = (0, *text)
    for n in range(1, order + 1):
      for end in range(max(1, n - 1), len(whole)):
        counts[n][whole[end - n + 1 : end + 1]] += 1
  discount = [0.5] * (order + 1)
  for n in range(1, order + 1):
    once, twice = (sum(c == k for c in counts[n].values()) for k in (1, 2))
    if once and twice:
      discount[n] = once / (once + 2 * twice)
  kept = {1: {(x,) for x in range(vocab)}}
  for n in range(2, order + 1):
    rows = collections.defaultdict(list)
    for gram, c in sorted(counts[n].items()):
      if c >= (min_count if n > 2 else 1) and (n == 2 or gram[:-1] in kept[n - 1]):
        rows[gram[:-1]].append((c, gram))
    for row in rows.values():
      row.sort(key=lambda item: -item[0])
    kept[n] = {gram for row in rows.values() for _, gram in (row[:max_successors] if max_successors else row)}

  def law(recent):
    n = len(recent) + 1
    if n == 1:
      total = sum(counts[1].values())
      seen = np.array([max(counts[1][(x,)] - discount[1], 0) / total for x in range(vocab)])
      return seen + (1 - seen.sum()) / vocab
    lower, context = law(recent[1:]), tuple(recent)
    if -1 in context or (n > 2 and context not in kept[n - 1]):
      return lower
    total = sum(c for gram, c in counts[n].items() if gram[:-1] == context)
    if not total:
      return lower
    mass = np.zeros(vocab)
    for gram in kept[n]:
      if gram[:-1] == context:
        mass[gram[-1]] = (counts[n][gram] - discount[n]) / total
    return mass + (1 - mass.sum()) * lower

  return law


@pytest.mark.parametrize(
    "how", [{}, dict(max_successors=1), dict(min_count=3), dict(max_successors=2, min_count=2)], ids=str
)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_law_is_that_of_the_definition(order, how):
  texts = texts_of(0, 6)
  tables = counted(texts, 6, order, **how)
  assert tables.order == order
  recents = np.array(list(itertools.product(range(-1, 6), repeat=order - 1)), np.int32).reshape(7 ** (order - 1), order - 1)
  found = np.asarray(ngram.next_law(tables, jnp.asarray(recents)))
  right = oracle(texts, 6, order, **how)
  for recent, law in zip(recents, found):
    if (np.diff((recent == -1).astype(int)) > 0).any():
      continue  # Absent after present cannot be.
    np.testing.assert_allclose(law, right(tuple(recent.tolist())), atol=1e-6)
  np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-6)
  assert (found > 0).all()


def test_long_rows_take_more_than_one_chunk(monkeypatch):
  monkeypatch.setattr(ngram, "_CHUNK", 4)
  texts = [[2, x, 3, x, 1] for x in range(2, 33)]
  tables, right = counted(texts, 33, 2), oracle(texts, 33, 2)
  found = ngram.next_law(tables, jnp.array([[2], [0], [9]]))
  for row, token in enumerate((2, 0, 9)):
    np.testing.assert_allclose(found[row], right((token,)), atol=1e-6)


def test_tables_of_the_public_vocabulary_are_compact():
  """32,128 pieces: bytes grow with the n-grams seen, not with V squared, and no number overflows."""
  generator = np.random.default_rng(0)
  texts = [generator.zipf(1.3, 30).clip(2, 32127).tolist() + [1] for _ in range(300)] + [[32127, 32126, 32127, 1]]
  tables = counted(texts, 32128, 3)
  seen = [len({t[i - n + 1 : i + 1] for t in map(lambda x: (0, *x), texts) for i in range(n - 1, len(t))}) for n in (2, 3)]
  assert [order.token.shape[0] - 1 for order in tables.orders] == seen
  held = sum(x.nbytes for x in jax.tree.leaves(tables))
  assert held <= 4 * 32128 * 3 + 8 * sum(seen) + 8 * (seen[0] + 2) + 100
  right = oracle(texts, 32128, 3)
  found = ngram.next_law(tables, jnp.array([[32127, 32126]]))[0]
  np.testing.assert_allclose(found, right((32127, 32126)), atol=1e-6)


def test_cut_gives_the_lower_orders():
  tables = counted(texts_of(1, 5), 5, 3)
  for order in (1, 2):
    lower = counted(texts_of(1, 5), 5, order)
    jax.tree.map(np.testing.assert_array_equal, tables.cut(order), lower)
  with pytest.raises(ValueError, match="order: expected 1 to 3"):
    tables.cut(4)


# --- Proposals ---------------------------------------------------------------------


G, B, L = 3, 48, 16
SETTING = dict(
    temperature=[1.0, 0.5, 0.0, 2.0] * (B // 4), top_k=[0, 3, 0, 2] * (B // 4), top_p=[0.9, 0.0, 0.0, 0.0] * (B // 4),
    min_length=[0, 2, 4, 9] * (B // 4), repetition_penalty=[1.0, 1.5, 3.0, 0.7] * (B // 4),
)  # fmt: skip


@pytest.mark.parametrize("order", [1, 3])
def test_q_is_what_the_tokens_were_drawn_from(order):
  texts = texts_of(2, V)
  tables, right = counted(texts, V, order), oracle(texts, V, order)
  generator = np.random.default_rng(order)
  lengths = generator.integers(1, 8, B)
  tokens = np.concatenate([np.zeros((B, 1), int), generator.integers(1, V, (B, L - 1))], axis=1)
  uniforms = np.float32(generator.uniform(size=(B, G)))
  drafter = ngram.ngram_drafter(G, recipes.sampling_transform(fakes.EOS))
  context = Context(jnp.asarray(tokens), jnp.asarray(lengths), jnp.ones(B, jnp.int32), fakes.settings(B, **SETTING))
  with mock.patch.object(draw, "uniforms", lambda keys, count: jnp.asarray(uniforms)):
    draft, _ = jax.jit(drafter.propose)(jax.random.split(jax.random.key(0), B), tables, (), context)
  assert draft.topology.is_chain and draft.topology.size == G + 1 and drafter.size == G
  for row in range(B):
    prefix = tokens[row, : lengths[row]].tolist()
    for i in range(G):
      recent = tuple(([-1] * order + prefix)[len(prefix) + 1 :])
      logits = oracles.numpy_process(
          np.log(right(recent)), prefix, len(prefix) - 1, fakes.EOS, SETTING["min_length"][row],
          SETTING["repetition_penalty"][row],
      )  # fmt: skip
      expected = oracles.numpy_law(logits, SETTING["temperature"][row], SETTING["top_k"][row], SETTING["top_p"][row])
      np.testing.assert_allclose(np.exp(draft.log_q[row, i]), expected, atol=3e-6)
      cumulative = np.cumsum(expected)
      if np.abs(cumulative - uniforms[row, i]).min() > 1e-5:
        assert draft.tokens[row, i] == (cumulative <= uniforms[row, i]).sum()
      prefix.append(int(draft.tokens[row, i]))


@pytest.mark.parametrize("order", [1, 3])
def test_as_a_model_it_scores_what_it_drafts(order):
  """A prefix, then a chain, a commit of a part of it, a tree, a commit along a path, a chain."""
  texts = texts_of(3, V)
  tables, right = counted(texts, V, order), oracle(texts, V, order)
  model = ngram.language_model()
  score = jax.jit(model.score)
  recent = lambda prefix: tuple(([-1] * order + list(prefix))[len(prefix) + 1 :])

  def check(scores, paths):
    for row, nodes in enumerate(paths):
      for node, prefix in enumerate(nodes):
        np.testing.assert_allclose(np.exp(scores.logits[row, node]), right(recent(prefix)), atol=1e-6)

  prompt = fakes.prompts(2, prefix=[[0, 3, 2]], prefix_length=[3, 2])
  state = model.init(tables, prompt, 24)
  known = [[0, 3], [0]]
  block = np.int32([[2, 3, 1, 2], [3, 3, 2, 1]])
  scores, state = score(tables, state, block, topology.chain(4))
  check(scores, [[k + block[r, : i + 1].tolist() for i in range(4)] for r, k in enumerate(known)])
  state = model.commit(state, None, jnp.array([1, 3]))
  known = [k + block[r, :n].tolist() for (r, k), n in zip(enumerate(known), (1, 3))]
  tree = topology.from_parents([-1, 0, 0, 2, 1])
  nodes = np.int32([[1, 2, 3, 1, 3], [2, 1, 3, 3, 2]])
  chains = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 1, 4]]
  scores, state = score(tables, state, nodes, tree)
  check(scores, [[k + [int(nodes[r, i]) for i in chain] for chain in chains] for r, k in enumerate(known)])
  state = model.commit(state, jnp.array([[0, 2, 3], [0, 1, 4]]), jnp.array([3, 2]))
  known = [known[0] + [int(nodes[0, i]) for i in (0, 2, 3)], known[1] + [int(nodes[1, i]) for i in (0, 1)]]
  scores, state = score(tables, state, block[:, :2], topology.chain(2))
  check(scores, [[k + block[r, : i + 1].tolist() for i in range(2)] for r, k in enumerate(known)])


# --- The law of a step ---------------------------------------------------------------


@pytest.mark.parametrize("order,gamma", [(2, 2), (3, 1)])
def test_law_of_a_block_is_the_target_s(order, gamma):
  """As `tests/test_step.py` does for a model that drafts: every cell of the uniforms, through the real recipe."""
  from tests import test_step

  vocab, texts = 3, texts_of(4, 3)
  target, _ = fakes.random_tables(order, vocab, gamma + 2)
  q_of = oracle(texts, vocab, order)
  tables = Params(jnp.asarray(target), counted(texts, vocab, order))
  run = test_step.opened(recipes.ngram(fakes.table_model(), gamma, eos_id=test_step.NEVER), gamma)
  prompt = fakes.prompts(test_step.SIZE, prefix=((0, 1),))
  for setting in test_step.SETTINGS:
    p_of = fakes.table_law(target[0], **setting)
    p = lambda t: p_of((1, *t))
    q = lambda t: oracles.numpy_law(np.log(q_of(tuple(([-1] * order + [0, 1, *t])[len(t) + 3 :]))), **setting)
    law = test_step.law_of_step(run, p, q, tables, prompt, fakes.settings(test_step.SIZE, **setting), gamma, vocab)
    for length in range(1, gamma + 2):
      found = oracles.continued(law, p, length)
      for tokens in itertools.product(range(vocab), repeat=length):
        exact = np.prod([p(tokens[:i])[x] for i, x in enumerate(tokens)])
        assert abs(found.get(tokens, 0.0) - exact) < 1e-6, (setting, tokens)


# --- Files and bad input -----------------------------------------------------------------


def test_a_file_gives_the_tables_back(tmp_path):
  tables, pieces = counted(texts_of(5, V), V, 3), ["<pad>", "</s>", "a", "b"]
  path = tmp_path / "new" / "tables.npz"
  ngram_counts.save(str(path), tables, pieces)
  assert [p.name for p in path.parent.iterdir()] == ["tables.npz"]
  jax.tree.map(np.testing.assert_array_equal, ngram_counts.load(str(path), pieces), tables)
  assert ngram_counts.load(str(path), pieces, order=1).order == 1
  with pytest.raises(ValueError, match="another vocabulary"):
    ngram_counts.load(str(path), ["<pad>", "</s>", "a", "c"])
  with pytest.raises(ValueError, match="found nothing there; --mode=fit_ngram writes one"):
    ngram_counts.load(str(tmp_path / "gone.npz"), pieces)
  path.write_bytes(path.read_bytes()[:100])
  with pytest.raises(ValueError, match="expected a file that --mode=fit_ngram wrote"):
    ngram_counts.load(str(path), pieces)


def test_bad_input():
  with pytest.raises(ValueError, match="gamma: expected at least 1"):
    ngram.ngram_drafter(0, recipes.sampling_transform())
  with pytest.raises(ValueError, match=r"below 2\*\*63, found order 5"):
    ngram_counts.Counter(32128, 5)
  counter = ngram_counts.Counter(4, 2)
  with pytest.raises(ValueError, match="at least one token"):
    counter.tables()
  with pytest.raises(ValueError, match=r"ids in \[0, 4\), found 0 to 4"):
    counter.add([[4, 1]])
