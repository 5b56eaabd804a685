"""Recursive rejection over a token tree: several drafted children a node, tried in the order of their drawing.

Without replacement it is the verification of Sequoia and DySpec, with
replacement SpecInfer's multi-step speculative sampling; on a chain both are
`acceptance.rejection`. Where children were chosen with certainty (`log_q` is
None) a child is accepted with its target probability.

Dimensions: B batch, G drafted nodes, N = G + 1 nodes of the block, V vocabulary.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.interfaces import Draft, Law, Verdict
from specdec.probability import residual
from specdec.probability import sampling as draw
from specdec.probability.transforms import GREEDY_TEMPERATURE, Sampling
from specdec.trees import paths
from specdec.trees.topology import NO_PARENT

Array = jax.Array


def verdict_at(draft: Draft, node: Array, next_token: Array, acceptance: Array) -> Verdict:
  """The verdict that accepts the path to `node` [B]."""
  path, count = paths.to_node(draft.topology, node)
  return Verdict(path, count, next_token, acceptance)


def greedy_tree(draft: Draft, law: Law, sampling: Sampling) -> Verdict:
  """Accepts the longest path of the tree that the target's argmax agrees with: the temperature-0 case.

  Lenience l < 1 accepts any child whose probability at temperature 1 is at
  least l times the largest, and is lossy. `log_q` is not read.

  Args:
    draft: a tree of G tokens.
    law: of the target after each node of the block, [B, N, V].
    sampling: only lenience is read.

  Source: Miao et al. 2024 (SpecInfer), Algorithm 2, VerifyGreedy.
  """
  rows = draft.tokens.shape[0]
  parents = draft.topology.per_row(rows).parents[:, 1:]
  above = jnp.maximum(parents, 0)
  at_parent = lambda x: jnp.take_along_axis(x, above, axis=1)
  argmax, best = draw.argmax(law.logits), law.logits.max(-1)
  at_draft = law.logits[jnp.arange(rows)[:, None], above, draft.tokens]
  near_best = at_draft >= at_parent(best) + jnp.log(sampling.lenience)[:, None]
  lenient = (sampling.lenience < 1)[:, None] & near_best
  good = ((draft.tokens == at_parent(argmax)) | lenient) & jnp.isfinite(at_parent(best)) & (parents != NO_PARENT)
  node = paths.deepest(draft.topology, good)
  next_token = jnp.take_along_axis(argmax, node[:, None], axis=1)[:, 0]
  return verdict_at(draft, node, next_token, good.astype(jnp.float32))


class _Walk(NamedTuple):
  """Where each row stands: `target / target_scale` and `own / own_scale` are what is left of p and of q."""

  node: Array  # [B], accepted last
  child: Array  # [B], tried next; N at the end
  target: Array  # [B, V]
  target_scale: Array  # [B]
  own: Array  # [B, V]
  own_scale: Array  # [B]
  tried: Array  # [B, V] bool, tokens of earlier siblings
  acceptance: Array  # [B, G]


def decide(uniforms: Array, draft: Draft, law: Law, sampling: Sampling, replacement: bool = False) -> Verdict:
  """The rule with its randomness laid open.

  At an accepted node R = p and D = q, its laws. For each child y in turn: accept
  when `u * l * D(y) < R(y)` and go on below it; else `R = norm(max(R - l D, 0))`
  and, without replacement, `D = norm(D with D(y) = 0)`. Where D has nothing
  left, the drafter drew from the tokens not yet tried alike, and so D is their
  uniform law. When no child is left the next token is drawn from R.

  The test number is uniform (DySpec's Algorithm 3 prints a normal one), and a
  walk that ends on a leaf draws from its p, which that algorithm leaves out.

  Greedy rows are decided by `greedy_tree`. With lenience l < 1 the rule is lossy.

  Args:
    uniforms: [B, G + 1] in [0, 1): of each drafted node, and of the next token.
    draft: a tree of G tokens, siblings numbered in the order of their drawing.
    law: of the target after each node of the block, [B, N, V].
    sampling: of each row; only temperature and lenience are read.
    replacement: static; whether siblings were drawn with replacement.

  Returns:
    A `Verdict`; `acceptance` of a child that was tried is `sum min(R / l, D)`.

  Source: Chen et al. 2024 (Sequoia), Algorithm 2; Xiong et al. 2024 (DySpec), Algorithm 3; Miao et al. 2024
  (SpecInfer), Algorithm 2.
  """
  batch, drafted = draft.tokens.shape
  parents = draft.topology.per_row(batch).parents
  vocab, lenience = law.log_p.shape[-1], sampling.lenience
  numbers = jnp.arange(vocab)
  row = jnp.arange(batch)
  here = lambda x, at: jnp.take_along_axis(x, at[:, None], axis=1)[:, 0]

  def laws(node):
    """p and q after `node`; a q that is not finite is 0 throughout: never accepted and never corrected for."""
    p = jnp.exp(law.log_p[row, node])
    if draft.log_q is None:
      return p, jnp.zeros_like(p)
    return p, jnp.nan_to_num(jnp.exp(draft.log_q[row, jnp.minimum(node, drafted - 1)]), nan=0.0)

  def body(walk: _Walk) -> _Walk:
    trying = walk.child <= drafted
    index = jnp.minimum(walk.child, drafted) - 1
    token, uniform = here(draft.tokens, index), here(uniforms, index)
    one = numbers == token[:, None]
    own, own_scale = walk.own, walk.own_scale
    if draft.log_q is None:
      own, own_scale = one.astype(jnp.float32), jnp.ones_like(own_scale)
    p, q = walk.target / walk.target_scale[:, None], own / own_scale[:, None]
    p_token, q_token = here(p, token), here(q, token)
    accepted = trying & (uniform * lenience * q_token < p_token) & (q_token > 0)
    # For a child that is rejected.
    rest = residual.residual_mass(p, q * lenience[:, None])
    tried = walk.tried | one
    if not replacement:
      valid = own.sum(-1) > 0  # What was not finite stays 0.
      own = jnp.where(one, 0.0, own)
      exhausted = (valid & (own.sum(-1) <= 0))[:, None]
      own = jnp.where(exhausted, jnp.where(tried, 0.0, 1.0), own)
      own_scale = own.sum(-1)
      own_scale = jnp.where(own_scale > 0, own_scale, 1.0)
    # For a child that is accepted.
    node = jnp.where(accepted, walk.child, walk.node)
    p_new, q_new = laws(node)
    choose = lambda new, old, before: jnp.where(
        _wide(accepted, new), new, jnp.where(_wide(trying, new), old, before)
    )
    ones = jnp.ones_like(own_scale)
    beta = jnp.minimum(p / lenience[:, None], q).sum(-1)
    at = jnp.where(trying, index, drafted)
    return _Walk(
        node=node,
        child=paths.next_child(parents, node, jnp.where(trying, walk.child, drafted)),
        target=choose(p_new, rest, walk.target),
        target_scale=choose(ones, rest.sum(-1), walk.target_scale),
        own=choose(q_new, own, walk.own),
        own_scale=choose(ones, own_scale, walk.own_scale),
        tried=choose(jnp.zeros_like(tried), tried, walk.tried),
        acceptance=jnp.where(jnp.arange(drafted) == at[:, None], beta[:, None], walk.acceptance),
    )

  root = jnp.zeros((batch,), jnp.int32)
  p, q = laws(root)
  ones = jnp.ones((batch,), p.dtype)
  nothing = jnp.zeros((batch, vocab), bool)
  start = _Walk(
      root, paths.next_child(parents, root, root), p, ones, q, ones, nothing, jnp.zeros((batch, drafted), jnp.float32)
  )
  end = jax.lax.while_loop(lambda walk: jnp.any(walk.child <= drafted), body, start)
  sampled = verdict_at(draft, end.node, draw.from_mass(uniforms[:, drafted], end.target), end.acceptance)
  greedy = sampling.temperature <= GREEDY_TEMPERATURE
  best = jax.lax.cond(jnp.any(greedy), lambda: greedy_tree(draft, law, sampling), lambda: sampled)
  return jax.tree.map(lambda a, b: jnp.where(_wide(greedy, a), a, b), best, sampled)


def _wide(rows: Array, like: Array) -> Array:
  """[B] with as many axes as `like`."""
  return rows.reshape(-1, *[1] * (like.ndim - 1))


def multi_round(key: Array, draft: Draft, law: Law, sampling: Sampling, replacement: bool = False) -> Verdict:
  """Recursive rejection; exact for every row whose lenience is 1. See `decide`.

  A batch that is all greedy takes `greedy_tree`.
  """
  uniforms = draw.uniforms(key, draft.tokens.shape[1] + 1)
  return jax.lax.cond(
      jnp.all(sampling.temperature <= GREEDY_TEMPERATURE),
      lambda: greedy_tree(draft, law, sampling),
      lambda: decide(uniforms, draft, law, sampling, replacement),
  )


# The two as `AcceptanceRule`s.
without_replacement = functools.partial(multi_round, replacement=False)
with_replacement = functools.partial(multi_round, replacement=True)
