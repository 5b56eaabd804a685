"""One speculative step: propose, score, accept, commit.

It knows no model, drafter or rule by name, and its only branch is on the
static shape of the draft: a chain is committed without a gather.
"""

from typing import Any

import jax
import jax.numpy as jnp

from specdec import interfaces
from specdec.interfaces import AcceptanceRule, DecodeState, Drafter, LanguageModel, Params, Prompt, Step, StepInfo, Transform
from specdec.trees.topology import NO_PARENT

Array = jax.Array


def speculative_step(
    target: LanguageModel, drafter: Drafter, rule: AcceptanceRule, transform: Transform, eos_id: int
) -> Step:
  """Builds the step of Leviathan et al. 2023, Algorithm 1, for any drafter and rule.

  Args:
    target: the model whose law is kept.
    drafter: proposes `drafter.size` tokens a step.
    rule: decides what is kept of them.
    transform: from logits to the law that tokens are drawn from.
    eos_id: the token that ends a row.
  """

  def init(params: Params, prompt: Prompt, sampling: Any, limit: Array, length: int) -> DecodeState:
    length += drafter.size + 1  # Room for a block beyond the last token.
    return interfaces.open_request(
        prompt,
        sampling,
        limit,
        length,
        target.init(params.target, prompt, length),
        drafter.init(params.draft, prompt, length),
    )

  def step(key: Array, params: Params, state: DecodeState) -> tuple[DecodeState, StepInfo]:
    key_draft, key_accept = jax.vmap(jax.random.split, out_axes=1)(key)
    draft, draft_state = drafter.propose(key_draft, params.draft, state.draft, state.context)
    block = jnp.concatenate([state.last_token, draft.tokens], axis=1)
    scores, target_state = target.score(params.target, state.target, block, draft.topology)
    law = transform(scores.logits, block, draft.topology, state.context)
    if draft.log_q is not None and draft.log_q.shape[-1] != law.log_p.shape[-1]:
      raise ValueError(
          f"vocabulary: the target has {law.log_p.shape[-1]} logits and the draft {draft.log_q.shape[-1]}; "
          "cut both to the pieces of the vocabulary that they share."
      )
    verdict = rule(key_accept, draft, law, state.sampling)

    accepted = jnp.take_along_axis(block, verdict.path, axis=1)  # [B, D]
    place = jnp.arange(accepted.shape[1] + 1)[None, :]
    emitted = jnp.where(
        place == verdict.count[:, None], verdict.next_token[:, None], jnp.pad(accepted, ((0, 0), (0, 1)))
    )
    nodes = jnp.pad(verdict.path, ((0, 0), (1, 0)))  # [B, D + 1], the node after which each emitted token came
    log_probs = law.log_prob(nodes, emitted)
    after, committed, log_prob = interfaces.append(state, emitted, verdict.count + 1, log_probs, eos_id)

    path = None if draft.topology.is_chain else nodes
    after = after._replace(
        target=target.commit(target_state, path, committed),
        draft=drafter.observe(draft_state, verdict, committed),
    )
    running = state.running
    tree = draft.topology.per_row(running.shape[0])
    depth, parents = tree.depth[:, 1:], tree.parents[:, 1:]
    # The prefix of a node is committed when its parent is the committed node of that depth.
    above = jnp.take_along_axis(nodes, jnp.maximum(depth - 1, 0), axis=1)
    on_path = (parents == above) & (parents != NO_PARENT) & (depth <= committed[:, None])
    info = StepInfo(
        drafted=jnp.where(running, (parents != NO_PARENT).sum(axis=1, dtype=jnp.int32), 0),
        accepted=jnp.minimum(committed, verdict.count),
        committed=committed,
        visited=on_path & running[:, None],
        acceptance=verdict.acceptance,
        log_prob=log_prob,
        drawn_log_prob=law.drawn_log_prob(nodes, emitted, committed),
        draft=draft.tokens,
        parents=parents,
        tokens=emitted,
    )
    return after, info

  return Step(init, step, drafter.size)
