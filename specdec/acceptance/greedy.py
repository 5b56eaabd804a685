"""Greedy acceptance: keep the draft while it is the target's argmax.

The temperature-0 case of `acceptance.rejection`, without any use of q: for
programs that only ever decode greedily.
"""

import jax
import jax.numpy as jnp

from specdec.acceptance.rejection import chain_verdict
from specdec.interfaces import Draft, Law, Verdict
from specdec.probability import sampling as draw
from specdec.probability.transforms import Sampling

Array = jax.Array


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
  logits = law.logits
  best = logits.max(-1)
  at_draft = jnp.take_along_axis(logits[:, :-1], draft.tokens[..., None], axis=-1)[..., 0]
  argmax = draw.argmax(logits)
  lenience = sampling.lenience[:, None]
  lenient = (lenience < 1) & (at_draft >= best[:, :-1] + jnp.log(lenience))
  accepted = ((draft.tokens == argmax[:, :-1]) | lenient) & jnp.isfinite(best[:, :-1])
  count = jnp.cumprod(accepted.astype(jnp.int32), axis=1).sum(axis=1)
  next_token = jnp.take_along_axis(argmax, count[:, None], axis=1)[:, 0]
  return chain_verdict(accepted, next_token, accepted.astype(jnp.float32))
