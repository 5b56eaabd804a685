"""Greedy acceptance: keep the draft while it is the target's argmax.

The temperature-0 case of `acceptance.rejection`, without any use of q: for
programs that only ever decode greedily.
"""

import jax
import jax.numpy as jnp

from specdec.interfaces import Draft, Law, Verdict
from specdec.probability import sampling as draw
from specdec.probability.transforms import Sampling

Array = jax.Array


def chain_verdict(accepted: Array, next_token: Array, acceptance: Array) -> Verdict:
  """The verdict of a chain: `accepted` [B, G] counts up to its first False."""
  batch, drafted = accepted.shape
  count = jnp.cumprod(accepted.astype(jnp.int32), axis=1).sum(axis=1)
  path = jnp.broadcast_to(1 + jnp.arange(drafted, dtype=jnp.int32), (batch, drafted))
  return Verdict(path, count, next_token, acceptance)


def nearly_best(draft: Draft, law: Law, sampling: Sampling) -> Array:
  """Drafted tokens [B, G] whose probability at temperature 1 is at least lenience times the largest.

  The paper prints <=, which at lenience 1 would accept everything. Never true
  where the law is not finite.

  Source: Leviathan et al. 2023, A.5.
  """
  logits = law.logits[:, :-1]
  best = logits.max(-1)
  at_draft = jnp.take_along_axis(logits, draft.tokens[..., None], axis=-1)[..., 0]
  return (at_draft >= best + jnp.log(sampling.lenience)[:, None]) & jnp.isfinite(best)


def greedy(key: Array | None, draft: Draft, law: Law, sampling: Sampling) -> Verdict:
  """Accepts the longest prefix of the draft that the target's argmax agrees with.

  Lenience l < 1 accepts any token whose probability at temperature 1 is at
  least l times the largest, and is lossy.

  Args:
    key: not used.
    draft: a chain of G tokens; its log_q is not read.
    law: of the target, [B, G + 1, V]; the temperature is not read.
    sampling: only lenience is read.

  Source: Leviathan et al. 2023, section 2.3 (argmax as a law) and A.5.
  """
  del key
  argmax = draw.argmax(law.logits)
  finite = jnp.isfinite(law.logits.max(-1))
  lenient = (sampling.lenience < 1)[:, None] & nearly_best(draft, law, sampling)
  accepted = ((draft.tokens == argmax[:, :-1]) & finite[:, :-1]) | lenient
  count = jnp.cumprod(accepted.astype(jnp.int32), axis=1).sum(axis=1)
  next_token = jnp.take_along_axis(argmax, count[:, None], axis=1)[:, 0]
  return chain_verdict(accepted, next_token, accepted.astype(jnp.float32))
