"""n-gram drafts: unigram, bigram, trigram …, counted from text, with back-off to the shorter context.

The tables are a trie in compressed rows. Order 1 is a law over the vocabulary.
The contexts of order n + 1 are the entries of order n (those of order 2 are the
tokens themselves), and each has a row of entries: tokens in rising order, found
by bisection, with their masses. So a trigram of 32,128 pieces needs 8 bytes an
n-gram that was seen and 8 a context, all int32 and float32, and runs inside
`jit`.

Dimensions: B batch, N nodes, V vocabulary, M entries of an order, K contexts.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.drafters.model import extend
from specdec.interfaces import Context, Draft, Drafter, LanguageModel, Prompt, Scores, Transform, Verdict
from specdec.probability import sampling as draw
from specdec.trees import topology as topology_lib

Array = jax.Array

ABSENT = -1  # A context that was never seen, or that reaches beyond the first token.
_CHUNK = 256  # Entries that are added to a law at a time.


class Order(NamedTuple):
  """The n-grams of one order above the first.

  Attributes:
    start: [K + 1] int32; context k has the entries start[k] … start[k + 1] - 1.
    token: [M] int32, rising within a context; one more at the end, V.
    mass: [M] float32, of each entry, after discounting.
    backoff: [K] float32, the mass of a context that goes to the shorter one.
  """

  start: Array
  token: Array
  mass: Array
  backoff: Array


class NgramTables(NamedTuple):
  """A counted model of any order; a pytree of arrays.

  Attributes:
    unigram: [V] float32, the law without a context, above 0 everywhere.
    orders: of order 2, 3, …; empty for a unigram.
  """

  unigram: Array
  orders: tuple[Order, ...] = ()

  @property
  def order(self) -> int:
    """1 is a unigram."""
    return 1 + len(self.orders)

  def cut(self, order: int) -> "NgramTables":
    """The tables of a lower order: contexts of `order` - 1 tokens.

    Raises:
      ValueError: `order` is below 1 or above the one that was counted.
    """
    if not 1 <= order <= self.order:
      raise ValueError(f"order: expected 1 to {self.order}, the order of these tables, found {order}.")
    return self._replace(orders=self.orders[: order - 1])


def _find(table: Order, context: Array, token: Array, vocab: int) -> Array:
  """The entry of `token` [R] in the rows of `context` [R], `ABSENT` where there is none."""
  row = jnp.maximum(context, 0)
  end = table.start[row + 1]

  def halve(_, bounds):
    low, high = bounds
    middle = (low + high) // 2
    open_ = low < high
    right = open_ & (table.token[middle] < token)
    return jnp.where(right, middle + 1, low), jnp.where(open_ & ~right, middle, high)

  low, _ = jax.lax.fori_loop(0, vocab.bit_length() + 1, halve, (table.start[row], end))
  return jnp.where((context >= 0) & (low < end) & (table.token[low] == token), low, ABSENT)


def _add_row(table: Order, law: Array, context: Array) -> Array:
  """`law` [R, V] of the shorter context, raised to that of `context` [R]."""
  row, known = jnp.maximum(context, 0), context >= 0
  law = law * jnp.where(known, table.backoff[row], 1.0)[:, None]
  end = jnp.where(known, table.start[row + 1], 0)
  rows = jnp.arange(law.shape[0])[:, None]

  def add(carry):
    place, law = carry
    entry = place[:, None] + jnp.arange(_CHUNK)[None, :]
    token = jnp.where(entry < end[:, None], table.token[jnp.minimum(entry, table.token.shape[0] - 1)], law.shape[1])
    mass = table.mass[jnp.minimum(entry, table.mass.shape[0] - 1)]
    return place + _CHUNK, law.at[rows, token].add(mass, mode="drop")

  start = jnp.where(known, table.start[row], 0)
  return jax.lax.while_loop(lambda carry: (carry[0] < end).any(), add, (start, law))[1]


def next_law(tables: NgramTables, recent: Array) -> Array:
  """The law of the next token, by interpolated back-off.

  `q(x | h) = max(c(hx) - D, 0) / c(h) + backoff(h) q(x | h')`, where h' is h
  without its oldest token; a context that was not counted leaves the law of the
  shorter one as it is.

  Args:
    tables: of order n.
    recent: [R, n - 1] int32, the last tokens, oldest first; `ABSENT` before the
      first token of a text.

  Returns:
    [R, V] float32, each row sums to 1.

  Example:
    >>> tables = NgramTables(jnp.array([.5, .25, .25]))
    >>> next_law(tables, jnp.zeros((2, 0), jnp.int32)).tolist()
    [[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]

  Source: Ney, Essen and Kneser 1994 (absolute discounting, interpolated form
  as in Chen and Goodman 1999, eq. 13).
  """
  vocab = tables.unigram.shape[0]
  law = jnp.broadcast_to(tables.unigram, (recent.shape[0], vocab))
  for length, table in enumerate(tables.orders, start=1):
    used = recent[:, recent.shape[1] - length :]
    context = used[:, 0]  # The contexts of order 2 are the tokens.
    for place in range(1, length):
      context = _find(tables.orders[place - 1], context, used[:, place], vocab)
    law = _add_row(table, law, context)
  return law


def _last(tokens: Array, length: Array, count: int) -> Array:
  """The last `count` of the first `length` [B] of `tokens` [B, L]; `ABSENT` where there are fewer."""
  place = length[:, None] - count + jnp.arange(count)[None, :]
  found = jnp.take_along_axis(tokens, jnp.maximum(place, 0), axis=1)
  return jnp.where(place >= 0, found, ABSENT)


def ngram_drafter(gamma: int, transform: Transform) -> Drafter:
  """Drafts a chain of `gamma` tokens from `NgramTables`, which are its params.

  q is the n-gram law after the target's own transform; at temperature 0 its
  argmax.

  Args:
    gamma: tokens drafted a step.
    transform: the target's.

  Raises:
    ValueError: gamma is below 1.

  Source: Leviathan et al. 2023, section 4.2 (unigram and bigram drafts).
  """
  if gamma < 1:
    raise ValueError(f"gamma: expected at least 1 drafted token a step, found {gamma}.")
  block, single = topology_lib.chain(gamma + 1), topology_lib.chain(1)

  def init(params: NgramTables, prompt: Prompt, buffer_length: int) -> tuple[()]:
    return ()

  def propose(key: Array, params: NgramTables, state: tuple[()], context: Context) -> tuple[Draft, tuple[()]]:
    def draft_one(context: Context, uniform: Array):
      recent = _last(context.tokens, context.length, params.order - 1)
      last = _last(context.tokens, context.length, 1)
      log_q = transform(jnp.log(next_law(params, recent))[:, None], last, single, context).log_p
      token = draw.from_law(uniform, log_q)
      return extend(context, token), (token[:, 0], log_q[:, 0])

    uniforms = draw.uniforms(key, gamma)
    _, (tokens, laws) = jax.lax.scan(draft_one, context, uniforms.T[..., None])
    return Draft(tokens.T, block, jnp.moveaxis(laws, 0, 1)), state

  def observe(state: tuple[()], verdict: Verdict, committed: Array) -> tuple[()]:
    return state

  return Drafter(init, propose, observe, gamma)


class NgramState(NamedTuple):
  """Tokens [B, L], how many of them are committed [B], and pending ones after those []."""

  tokens: Array
  length: Array
  pending: Array


def language_model() -> LanguageModel:
  """`NgramTables` as a model, so that whatever measures or drafts with a model takes n-grams too."""

  def init(params: NgramTables, prompt: Prompt, buffer_length: int) -> NgramState:
    batch, width = prompt.prefix.shape
    tokens = jnp.zeros((batch, max(buffer_length, width)), jnp.int32).at[:, :width].set(prompt.prefix)
    return NgramState(tokens, prompt.prefix_length - 1, jnp.int32(0))

  def score(params: NgramTables, state: NgramState, tokens: Array, topology: Any) -> tuple[Scores, NgramState]:
    batch, nodes = tokens.shape
    before = state.length + state.pending
    parents = jnp.broadcast_to(topology.parents, (batch, nodes))
    node = jnp.broadcast_to(jnp.arange(nodes), (batch, nodes))
    beyond = jnp.zeros((batch, nodes), jnp.int32)  # How far back of the block's root.
    recent = []
    for _ in range(params.order - 1):
      place = before[:, None] - beyond
      earlier = jnp.take_along_axis(state.tokens, jnp.maximum(place, 0), axis=1)
      inside = jnp.take_along_axis(tokens, jnp.maximum(node, 0), axis=1)
      recent.append(jnp.where(node >= 0, inside, jnp.where(place >= 0, earlier, ABSENT)))
      node = jnp.where(node >= 0, jnp.take_along_axis(parents, jnp.maximum(node, 0), axis=1), node)
      beyond = beyond + (node < 0)
    recent = jnp.stack(recent[::-1], axis=-1) if recent else jnp.zeros((batch, nodes, 0), jnp.int32)
    law = next_law(params, recent.reshape(batch * nodes, -1)).reshape(batch, nodes, -1)
    state = NgramState(_write(state.tokens, tokens, before), state.length, state.pending + nodes)
    return Scores(jnp.log(law), jnp.zeros((batch, nodes, 1))), state

  def commit(state: NgramState, path: Array | None, count: Array) -> NgramState:
    if path is not None:
      moved = jnp.take_along_axis(state.tokens, state.length[:, None] + path, axis=1)
      state = state._replace(tokens=_write(state.tokens, moved, state.length))
    return state._replace(length=state.length + count, pending=jnp.int32(0))

  return LanguageModel(init, score, commit)


def _write(buffer: Array, new: Array, start: Array) -> Array:
  """Puts `new` [B, N] into `buffer` [B, L] at `start` [B]; what would go beyond the end is dropped."""
  place = start[:, None] + jnp.arange(new.shape[1])[None, :]
  return buffer.at[jnp.arange(buffer.shape[0])[:, None], place].set(new, mode="drop")
