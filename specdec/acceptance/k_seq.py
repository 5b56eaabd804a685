"""k-SEQ, the rule of SpecTr: several independent drafts, of which the first that passes a lowered bar is kept.

Dimensions: B batch, G drafted nodes, N = G + 1 nodes of the block, V vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.acceptance.multi_round import greedy_tree, verdict_at
from specdec.interfaces import Draft, Law, Verdict
from specdec.probability import sampling as draw
from specdec.probability.transforms import GREEDY_TEMPERATURE, Sampling

Array = jax.Array

_BISECTIONS = 30  # Halvings of [1, k]; float32 resolves no more.
_SLACK = 3e-7  # Of the defining inequality, which is flat where p is near q: a few roundings of float32.


def accept_mass(p: Array, q: Array, rho: Array) -> Array:
  """beta(rho) = sum min(q, p / rho), the chance that one draft passes; [B] for p, q [B, V]."""
  return jnp.minimum(q, p / rho[:, None]).sum(-1)


def any_accepted(beta: Array, k: Array) -> Array:
  """1 - (1 - beta)^k, the chance that one of k drafts passes."""
  return -jnp.expm1(k * jnp.log1p(-jnp.minimum(beta, 1 - 1e-7)))


def best_rho(p: Array, q: Array, k: Array) -> Array:
  """The smallest rho in [1, k] with `1 - (1 - beta)^k <= rho beta`: below it the rule would not be exact.

  Found by bisection, from above. 1 for one draft, and then the rule is
  speculative sampling.

  Args:
    p: [B, V], the target's law.
    q: [B, V], the draft's.
    k: [B] int32, drafts.

  Example:
    >>> p, q = jnp.array([[.5, .5]]), jnp.array([[.9, .1]])
    >>> [round(float(best_rho(p, q, jnp.array([k]))[0]), 3) for k in (1, 2)]
    [1.0, 1.584]

  Source: Sun et al. 2023 (SpecTr), section 5.
  """

  def halve(_, bounds):
    low, high = bounds
    middle = 0.5 * (low + high)
    beta = accept_mass(p, q, middle)
    enough = any_accepted(beta, k) <= middle * beta + _SLACK
    return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

  one = jnp.ones(p.shape[:1], p.dtype)
  return jax.lax.fori_loop(0, _BISECTIONS, halve, (one, jnp.maximum(k.astype(p.dtype), 1.0)))[1]


class _Descent(NamedTuple):
  node: Array  # [B], accepted last
  alive: Array  # [B, N] bool, nodes that say what is accepted so far
  going: Array  # [B] bool
  mass: Array  # [B, V], of the next token
  acceptance: Array  # [B, G]


def decide(uniforms: Array, draft: Draft, law: Law, sampling: Sampling) -> Verdict:
  """The rule with its randomness laid open.

  The drafts that share the accepted prefix have k next tokens, drawn
  independently from q. The first with `u rho q(y) < p(y)` is accepted, and the
  drafts that say y live on. If none is, the next token comes from
  `p - min(q, p / rho) (1 - (1 - beta)^k) / beta`, normalised.

  Greedy rows are decided by `multi_round.greedy_tree`. Lenience is not read.

  Args:
    uniforms: [B, G + 1] in [0, 1): of each drafted node, and of the next token.
    draft: a tree whose siblings were drawn with replacement, such as k chains
      from the root.
    law: of the target after each node of the block, [B, N, V].
    sampling: of each row; only the temperature is read.

  Returns:
    A `Verdict`; `acceptance` of the i-th of k siblings is `beta (1 - beta)^(i - 1)`.

  Raises:
    ValueError: the draft has no law.

  Source: Sun et al. 2023 (SpecTr), Algorithms 2 and 3.
  """
  if draft.log_q is None:
    raise ValueError("k_seq: expected a draft drawn from a law (log_q), found one chosen with certainty.")
  batch, drafted = draft.tokens.shape
  tree = draft.topology.per_row(batch)
  parents, row = tree.parents[:, 1:], jnp.arange(batch)

  def body(state: _Descent) -> _Descent:
    p = jnp.exp(law.log_p[row, state.node])
    q = jnp.nan_to_num(jnp.exp(draft.log_q[row, jnp.minimum(state.node, drafted - 1)]), nan=0.0)
    child = jnp.take_along_axis(state.alive, jnp.maximum(parents, 0), axis=1) & (parents >= 0) & state.going[:, None]
    k = child.sum(-1)
    rho = best_rho(p, q, k)
    beta = accept_mass(p, q, rho)
    q_token, p_token = q[row[:, None], draft.tokens], p[row[:, None], draft.tokens]
    passed = child & (uniforms[:, :-1] * rho[:, None] * q_token < p_token) & (q_token > 0)
    found = passed.any(-1)
    first = jnp.argmax(passed, axis=-1)
    same = draft.tokens == jnp.take_along_axis(draft.tokens, first[:, None], axis=1)
    share = jnp.where(beta > 0, any_accepted(beta, k) / jnp.where(beta > 0, beta, 1.0), 0.0)
    rest = jnp.maximum(p - jnp.minimum(q, p / rho[:, None]) * share[:, None], 0.0)
    rest = jnp.where(rest.sum(-1, keepdims=True) > 0, rest, p)
    rank = jnp.cumsum(child, axis=-1) - 1
    chance = beta[:, None] * (1 - beta[:, None]) ** rank
    return _Descent(
        node=jnp.where(found, first + 1, state.node).astype(jnp.int32),
        alive=jnp.pad(child & same & found[:, None], ((0, 0), (1, 0))),
        going=found,
        mass=jnp.where(state.going[:, None], rest, state.mass),
        acceptance=jnp.where(child, chance, state.acceptance),
    )

  start = _Descent(
      node=jnp.zeros((batch,), jnp.int32),
      alive=jnp.arange(drafted + 1)[None, :] == jnp.zeros((batch, 1)),
      going=jnp.ones((batch,), bool),
      mass=jnp.exp(law.log_p[:, 0]),
      acceptance=jnp.zeros((batch, drafted), jnp.float32),
  )
  # A leaf has no next tokens: the last round finds none and leaves p as it is.
  end = jax.lax.while_loop(lambda state: jnp.any(state.going), body, start)
  sampled = verdict_at(draft, end.node, draw.from_mass(uniforms[:, drafted], end.mass), end.acceptance)
  greedy = sampling.temperature <= GREEDY_TEMPERATURE
  best = greedy_tree(draft, law, sampling)
  return jax.tree.map(lambda a, b: jnp.where(greedy.reshape(-1, *[1] * (a.ndim - 1)), a, b), best, sampled)


def k_seq(key: Array, draft: Draft, law: Law, sampling: Sampling) -> Verdict:
  """The rule of SpecTr; exact. See `decide`."""
  uniforms = draw.uniforms(key, draft.tokens.shape[1] + 1)
  return jax.lax.cond(
      jnp.all(sampling.temperature <= GREEDY_TEMPERATURE),
      lambda: greedy_tree(draft, law, sampling),
      lambda: decide(uniforms, draft, law, sampling),
  )
