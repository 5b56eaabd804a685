"""Speculative sampling: accept by p/q, correct from the residual.

Chen et al. 2023 describe the same rule with p and q swapped in name; here p is
the target and q the draft, as in Leviathan et al. 2023.

Dimensions: B batch, G drafted tokens, V vocabulary.
"""

import jax
import jax.numpy as jnp

from specdec.acceptance.greedy import chain_verdict, greedy, nearly_best
from specdec.interfaces import Draft, Law, Verdict
from specdec.probability import residual
from specdec.probability import sampling as draw
from specdec.probability.transforms import GREEDY_TEMPERATURE, Sampling

Array = jax.Array


def draft_probability(draft: Draft, vocab_size: int) -> Array:
  """q [B, G, V]; a point mass where the tokens were chosen with certainty, 0 where the draft is not finite.

  A draft whose law is NaN is never accepted and never corrected for: the
  output is then the target's own, at the target's own speed.
  """
  if draft.log_q is None:
    return jax.nn.one_hot(draft.tokens, vocab_size, dtype=jnp.float32)
  return jnp.nan_to_num(jnp.exp(draft.log_q), nan=0.0)


def decide(uniforms: Array, draft: Draft, law: Law, sampling: Sampling) -> Verdict:
  """The rule with its randomness laid open.

  Token i is accepted when `u_i * l * q_i(x_i) < p_i(x_i)` (strictly, so that a
  token with p = 0 is never accepted). After the first rejection the next token
  is drawn from `norm(max(0, p - l q))`, after a full acceptance from p.

  With lenience l < 1 the output law is no longer the target's: no token is
  more likely than p / l. A greedy row then accepts a draft whose probability
  at temperature 1 is at least l times the largest (the paper prints <=, which
  at l = 1 would accept everything).

  Args:
    uniforms: [B, G + 1] in [0, 1); the last one draws the next token.
    draft: a chain of G tokens.
    law: of the target after each node of the block, [B, G + 1, V].
    sampling: of each row; only temperature and lenience are read.

  Returns:
    A `Verdict`; `acceptance` is sum min(p / l, q), beta at l = 1.

  Source: Leviathan et al. 2023, Algorithm 1, Theorem 3.5, A.5.
  """
  drafted = draft.tokens.shape[1]
  p = jnp.exp(law.log_p)
  q = draft_probability(draft, p.shape[-1])
  lenience = sampling.lenience[:, None]
  at_draft = lambda x: jnp.take_along_axis(x, draft.tokens[..., None], axis=-1)[..., 0]
  p_draft, q_draft = at_draft(p[:, :-1]), at_draft(q)
  # A token with q = 0 was not drawn from q: the draft is not finite.
  accepted = (uniforms[:, :-1] * lenience * q_draft < p_draft) & (q_draft > 0)
  lenient_argmax = (sampling.temperature <= GREEDY_TEMPERATURE)[:, None] & (lenience < 1)
  near_best = nearly_best(draft, law, sampling)
  accepted = jnp.where(lenient_argmax, near_best, accepted)
  count = jnp.cumprod(accepted.astype(jnp.int32), axis=1).sum(axis=1)

  # The bonus position has q = 0, so that its residual is p itself.
  lenient_q = jnp.pad(q * lenience[..., None], ((0, 0), (0, 1), (0, 0)))
  here = lambda x: jnp.take_along_axis(x, count[:, None, None], axis=1)[:, 0]
  mass = residual.residual_mass(here(p), here(lenient_q))
  next_token = draw.from_mass(uniforms[:, drafted], mass)
  acceptance = jnp.minimum(p[:, :-1] / lenience[..., None], q).sum(-1)
  acceptance = jnp.where(lenient_argmax, near_best.astype(acceptance.dtype), acceptance)
  return chain_verdict(accepted, next_token, acceptance)


def rejection(key: Array, draft: Draft, law: Law, sampling: Sampling) -> Verdict:
  """Speculative sampling; exact for every row whose lenience is 1. See `decide`.

  A batch that is all greedy takes `acceptance.greedy`, which decides the same
  without reading q.
  """
  uniforms = draw.uniforms(key, draft.tokens.shape[1] + 1)
  return jax.lax.cond(
      jnp.all(sampling.temperature <= GREEDY_TEMPERATURE),
      lambda: greedy(None, draft, law, sampling),
      lambda: decide(uniforms, draft, law, sampling),
  )
