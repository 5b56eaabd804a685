"""The contracts: everything that varies in speculative decoding is one of these.

Dimensions: B batch, S encoder length, P prefix length, L token buffer length,
G drafted tokens a step, N nodes of a block (G + 1 for a chain: the last
committed token and the draft), V vocabulary, E embedding.
"""

from collections.abc import Callable
import enum
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from specdec.trees.topology import Topology

Array = jax.Array


class StopCode(enum.IntEnum):
  """Why a row ended; inside jit there are no exceptions."""

  RUNNING = 0
  EOS = 1
  LENGTH = 2
  NOT_FINITE = 3


class Prompt(NamedTuple):
  """What is decoded: one row a request.

  Attributes:
    tokens: [B, S] int32, encoder input.
    mask: [B, S] bool, True where there is a token; padding may stand anywhere.
    prefix: [B, P] int32, decoder prefix: BOS (0 in T5), then forced tokens,
      then anything.
    prefix_length: [B] int32, at least 1 (BOS alone).
  """

  tokens: Array
  mask: Array
  prefix: Array
  prefix_length: Array


class Scores(NamedTuple):
  """A model's view of N nodes.

  Attributes:
    logits: [B, N, V], of the token after each node.
    hidden: [B, N, E], the states that the logits were made from.
  """

  logits: Array
  hidden: Array


class LanguageModel(NamedTuple):
  """A network as pure functions; `params` and `state` are its own pytrees.

  Attributes:
    init: `(params, prompt, buffer_length) -> state`: the encoder and everything
      computed once a request; the cache holds the prefix but for its last token.
    score: `(params, state, tokens [B, N], topology) -> Scores, state`: scores
      nodes after the committed and pending ones, and makes them pending.
    commit: `(state, path [B, P] or None, count [B]) -> state`: keeps `count`
      pending nodes, those named by `path` in order (None: the first ones, in
      O(1)), and forgets the rest.
  """

  init: Callable[[Any, Prompt, int], Any]
  score: Callable[[Any, Any, Array, Topology], tuple[Scores, Any]]
  commit: Callable[[Any, Array | None, Array], Any]


class Context(NamedTuple):
  """What is committed, as a drafter or a transform sees it.

  Attributes:
    tokens: [B, L] int32, prefix and new tokens.
    length: [B] int32, how many of them are committed.
    prefix_length: [B] int32, how many came with the prompt.
    sampling: the settings of each row (`probability.transforms.Sampling`).
  """

  tokens: Array
  length: Array
  prefix_length: Array
  sampling: Any


def _each_row(x: Array, node: Array, token: Array) -> Array:
  """`x[b, node[b], token[b]]` [B, D]; a gather that named the row would cross the chips that share a batch."""
  return jax.vmap(lambda row, *at: row[at])(x, node, token)


class Law(NamedTuple):
  """The law of the next token after each node of a block.

  Attributes:
    log_p: [B, N, V], after every transform; what is drawn from.
    logits: [B, N, V] float32, after bans and penalties, before temperature.
  """

  log_p: Array
  logits: Array

  def log_prob(self, node: Array, token: Array) -> Array:
    """Log-probability at temperature 1 of `token` [B, D] after `node` [B, D]; NaN where the law is not finite."""
    log_z = jax.nn.logsumexp(self.logits, axis=-1)
    log_z = jnp.take_along_axis(log_z, node, axis=1)
    log_prob = _each_row(self.logits, node, token) - log_z
    return jnp.where(jnp.isfinite(log_z), log_prob, jnp.nan)

  def drawn_log_prob(self, node: Array, token: Array, count: Array) -> Array:
    """Log-probability [B], in this law, of the first `count` [B] of `token` [B, D] after `node` [B, D]."""
    log_prob = _each_row(self.log_p, node, token)
    return jnp.where(jnp.arange(token.shape[1])[None, :] < count[:, None], log_prob, 0.0).sum(axis=-1)


class Draft(NamedTuple):
  """A proposal.

  Attributes:
    tokens: [B, G] int32.
    topology: of the block: the root, then the G drafted nodes; the same for
      every row, or one a row.
    log_q: [B, G, V], the law after block nodes 0 … G - 1, after every transform,
      from which their children were drawn: for a chain, the law of each token.
      After a node without children it is not read. Children drawn without
      replacement follow it with their earlier siblings taken out. None when
      each token was chosen with certainty.
  """

  tokens: Array
  topology: Topology
  log_q: Array | None


class Drafter(NamedTuple):
  """Where drafts come from.

  Attributes:
    init: `(params, prompt, buffer_length) -> state`.
    propose: `(key [B], params, state, context) -> Draft, state`.
    observe: `(state, verdict, committed [B]) -> state`, told how many of the
      tokens of the verdict were committed (0 for rows that have ended).
    size: G, the drafted tokens of a step.
  """

  init: Callable[[Any, Prompt, int], Any]
  propose: Callable[[Array, Any, Any, Context], tuple[Draft, Any]]
  observe: Callable[[Any, "Verdict", Array], Any]
  size: int


class Verdict(NamedTuple):
  """What a rule decided.

  Attributes:
    path: [B, D] int32, block nodes of the accepted tokens in order (1 … G).
    count: [B] int32, how many of them are accepted.
    next_token: [B] int32, the correction, or the bonus after a full acceptance.
    acceptance: [B, G] float32, probability that a draft at this place is
      accepted given its prefix (for a chain sum min(p, q), the paper's beta);
      in a tree also given its earlier siblings, so 0 after an accepted one.
  """

  path: Array
  count: Array
  next_token: Array
  acceptance: Array


class AcceptanceRule(Protocol):
  """Decides what is kept: `(key [B], draft, law, sampling) -> Verdict`."""

  def __call__(self, key: Array, draft: Draft, law: Law, sampling: Any) -> Verdict: ...


# `(logits [B, N, V], tokens [B, N], topology, context) -> Law`: the law after each node. Depths count from the last
# committed token; where the topology has `columns`, `tokens` [B, W] are those of the columns.
Transform = Callable[[Array, Array, Topology, Context], Law]


class Params(NamedTuple):
  """Parameters of both models, passed through every call."""

  target: Any
  draft: Any = None


class DecodeState(NamedTuple):
  """What the next step needs.

  Attributes:
    tokens: [B, L] int32.
    length: [B] int32, committed tokens, prefix included.
    prefix_length: [B] int32.
    limit: [B] int32, length at which a row stops.
    stop: [B] int32, `StopCode`.
    sampling: settings of each row.
    target: state of the target.
    draft: state of the drafter.
  """

  tokens: Array
  length: Array
  prefix_length: Array
  limit: Array
  stop: Array
  sampling: Any
  target: Any
  draft: Any

  @property
  def context(self) -> Context:
    """The committed tokens and their settings."""
    return Context(self.tokens, self.length, self.prefix_length, self.sampling)

  @property
  def running(self) -> Array:
    """[B] bool."""
    return self.stop == StopCode.RUNNING

  @property
  def last_token(self) -> Array:
    """[B, 1], the token that no cache holds yet."""
    return jnp.take_along_axis(self.tokens, self.length[:, None] - 1, axis=1)


class StepInfo(NamedTuple):
  """What a person wants to know of one step; all zero for a row that has ended.

  Attributes:
    drafted: [B] int32, tokens proposed: the drafted nodes of the row's tree.
    accepted: [B] int32, proposed tokens that were committed.
    committed: [B] int32, tokens committed.
    visited: [B, G] bool, drafted nodes whose prefix was committed.
    acceptance: [B, G] float32, see `Verdict`.
    log_prob: [B] float32, of the committed tokens at temperature 1.
    drawn_log_prob: [B] float32, of them in the law that they were drawn from.
    draft: [B, G] int32, the proposal.
    parents: [B, G] int32, of the drafted nodes in the numbers of the block, 0 being
      the root; `NO_PARENT` where there is no node.
    tokens: [B, D + 1] int32, the committed tokens, then anything.
  """

  drafted: Array
  accepted: Array
  committed: Array
  visited: Array
  acceptance: Array
  log_prob: Array
  drawn_log_prob: Array
  draft: Array
  parents: Array
  tokens: Array


class Step(NamedTuple):
  """One step of decoding; the baseline wears it too.

  Attributes:
    init: `(params, prompt, sampling, limit [B], length) -> DecodeState`, with
      room for `length` tokens.
    step: `(key [B], params, state) -> DecodeState, StepInfo`.
    size: G, 0 for the baseline.
  """

  init: Callable[..., DecodeState]
  step: Callable[[Array, Any, DecodeState], tuple[DecodeState, StepInfo]]
  size: int


def open_request(prompt: Prompt, sampling: Any, limit: Array, length: int, target: Any, draft: Any = None) -> DecodeState:
  """The state before the first step; `length` is L."""
  batch, prefix = prompt.prefix.shape
  inside = jnp.arange(prefix)[None, :] < prompt.prefix_length[:, None]
  tokens = jnp.zeros((batch, length), jnp.int32).at[:, :prefix].set(jnp.where(inside, prompt.prefix, 0))
  running = jnp.where(prompt.prefix_length < limit, StopCode.RUNNING, StopCode.LENGTH)
  return DecodeState(
      tokens, prompt.prefix_length, prompt.prefix_length, limit, running.astype(jnp.int32), sampling, target, draft
  )


def append(
    state: DecodeState, emitted: Array, count: Array, log_prob: Array, eos_id: int
) -> tuple[DecodeState, Array, Array]:
  """Commits the first `count` of `emitted`, cut at EOS and at the limit, and sets the stop codes.

  Args:
    state: before.
    emitted: [B, D] int32.
    count: [B] int32, how many of them were drawn from their laws.
    log_prob: [B, D], of each of them; a row stops before the first that is NaN,
      because the law it was drawn from is not one.
    eos_id: the token that ends a row.

  Returns:
    The state with new tokens, lengths and stop codes; [B] int32, how many
    tokens were committed, 0 in rows that had ended; and [B], their
    log-probability.
  """
  width = emitted.shape[1]
  place = jnp.arange(width)[None, :]
  finite = jnp.cumprod(~jnp.isnan(log_prob), axis=1).sum(axis=1)
  valid = jnp.where(state.running, jnp.minimum(jnp.minimum(count, finite), state.limit - state.length), 0)
  is_eos = (emitted == eos_id) & (place < valid[:, None])
  has_eos = is_eos.any(axis=1)
  committed = jnp.where(has_eos, is_eos.argmax(axis=1) + 1, valid).astype(jnp.int32)
  kept = place < committed[:, None]

  def put(row, values, keep, start):
    old = jax.lax.dynamic_slice_in_dim(row, start, width)
    return jax.lax.dynamic_update_slice_in_dim(row, jnp.where(keep, values, old), start, 0)

  tokens = jax.vmap(put)(state.tokens, emitted, kept, state.length)
  length = state.length + committed
  stop = jnp.where(
      has_eos,
      StopCode.EOS,
      jnp.where(length >= state.limit, StopCode.LENGTH, jnp.where(count <= finite, StopCode.RUNNING, StopCode.NOT_FINITE)),
  )
  stop = jnp.where(state.running, stop, state.stop).astype(jnp.int32)
  return state._replace(tokens=tokens, length=length, stop=stop), committed, jnp.where(kept, log_prob, 0.0).sum(-1)
