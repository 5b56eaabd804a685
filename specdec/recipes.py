"""Named methods: each picks the arguments of the core and calls it."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from specdec.acceptance import multi_round
from specdec.acceptance.k_seq import k_seq
from specdec.acceptance.rejection import rejection
from specdec.autoregressive import autoregressive_step
from specdec.beam_search import BeamSearch
from specdec.drafters.model import model_drafter
from specdec.drafters.ngram import ngram_drafter
from specdec.drafters.tree import DRAFT_TEMPERATURE, tree_drafter
from specdec.interfaces import AcceptanceRule, Context, Drafter, LanguageModel, Law, Step, Transform
from specdec.probability import transforms
from specdec.step import speculative_step
from specdec.trees import dyspec as dyspec_lib
from specdec.trees import sequoia as sequoia_lib
from specdec.trees import specinfer as specinfer_lib
from specdec.trees.growth import Growth
from specdec.trees.topology import Topology

Array = jax.Array

EOS_ID = 1


def sampling_transform(eos_id: int = EOS_ID) -> Transform:
  """The one transform that target, draft and baseline share: `probability.transforms` at every node."""

  def transform(logits: Array, tokens: Array, topology: Topology, context: Context) -> Law:
    settings = context.sampling
    new_tokens = (context.length - context.prefix_length)[:, None] + topology.depth  # [B, N]
    seen = None
    if settings.repetition_penalty is not None:
      size = logits.shape[-1]
      before = transforms.seen_tokens(context.tokens, context.length, size)
      marks = jax.nn.one_hot(tokens, size, dtype=jnp.float32)
      mask = topology.per_row(logits.shape[0]).mask.astype(jnp.float32)
      seen = before[:, None] | (jnp.einsum("bnm,bmv->bnv", mask, marks) > 0)
    processed = transforms.process(logits, settings, transforms.Prefix(new_tokens, seen), eos_id)
    return Law(transforms.to_law(processed, settings), processed)

  return transform


def autoregressive(target: LanguageModel, eos_id: int = EOS_ID) -> Step:
  """Plain decoding, the baseline."""
  return autoregressive_step(target, sampling_transform(eos_id), eos_id)


def beam_search(target: LanguageModel, beams: int = 4, eos_id: int = EOS_ID) -> BeamSearch:
  """T5X's beam search, the second baseline; `beam_search.search` runs it.

  Args:
    target: the model.
    beams: hypotheses of a row, 4 in T5X; 1 is not greedy decoding, see `beam_search`.
    eos_id: the token that ends a hypothesis.

  Raises:
    ValueError: `beams` is below 1.
  """
  if beams < 1:
    raise ValueError(f"beams: expected at least 1, found {beams}.")
  return BeamSearch(target, sampling_transform(eos_id), eos_id, beams)


def leviathan(target: LanguageModel, draft: LanguageModel, gamma: int, eos_id: int = EOS_ID) -> Step:
  """Speculative decoding with a smaller model (Leviathan et al. 2023; Chen et al. 2023).

  Args:
    target: the model whose law is kept.
    draft: a cheaper model of the same vocabulary.
    gamma: tokens drafted a step.
    eos_id: the token that ends a row.
  """
  transform = sampling_transform(eos_id)
  return speculative_step(target, model_drafter(draft, gamma, transform), rejection, transform, eos_id)


def ngram(target: LanguageModel, gamma: int, eos_id: int = EOS_ID) -> Step:
  """Speculative decoding with counted n-grams (Leviathan et al. 2023, section 4.2).

  Args:
    target: the model whose law is kept.
    gamma: tokens drafted a step.
    eos_id: the token that ends a row.

  The draft's params are `drafters.ngram.NgramTables` of any order.
  """
  return drafted_by(target, ngram_drafter, gamma, eos_id)


def drafted_by(
    target: LanguageModel, drafter: Callable[[int, Transform], Drafter], gamma: int, eos_id: int = EOS_ID
) -> Step:
  """Speculative sampling with any drafter of chains.

  Args:
    target: the model whose law is kept.
    drafter: `(gamma, transform) -> Drafter`.
    gamma: tokens drafted a step.
    eos_id: the token that ends a row.
  """
  transform = sampling_transform(eos_id)
  return speculative_step(target, drafter(gamma, transform), rejection, transform, eos_id)


def tree(
    target: LanguageModel,
    draft: LanguageModel,
    growth: Growth,
    rule: AcceptanceRule = multi_round.without_replacement,
    draft_temperature: float = DRAFT_TEMPERATURE,
    eos_id: int = EOS_ID,
) -> Step:
  """Speculative decoding with token trees of any construction.

  Args:
    target: the model whose law is kept.
    draft: a cheaper model of the same vocabulary.
    growth: how a tree grows, such as `trees.static.static_growth(parents)`.
    rule: that fits how its children are drawn.
    draft_temperature: values the trees of greedy rows, see `drafters.tree`.
    eos_id: the token that ends a row.
  """
  transform = sampling_transform(eos_id)
  drafter = tree_drafter(draft, growth, transform, draft_temperature)
  return speculative_step(target, drafter, rule, transform, eos_id)


def specinfer(
    target: LanguageModel,
    draft: LanguageModel,
    expansion: Sequence[int] = specinfer_lib.EXPANSION,
    eos_id: int = EOS_ID,
) -> Step:
  """A tree with a fixed number of children by depth, drawn with replacement (Miao et al. 2024)."""
  growth = specinfer_lib.specinfer_growth(expansion)
  return tree(target, draft, growth, multi_round.with_replacement, eos_id=eos_id)


def spectr(target: LanguageModel, draft: LanguageModel, drafts: int, gamma: int, eos_id: int = EOS_ID) -> Step:
  """`drafts` independent chains of `gamma` tokens under k-SEQ (Sun et al. 2023)."""
  return tree(target, draft, specinfer_lib.spectr_growth(drafts, gamma), k_seq, eos_id=eos_id)


def sequoia(
    target: LanguageModel,
    draft: LanguageModel,
    acceptance: Sequence[float],
    size: int,
    max_depth: int | None = None,
    eos_id: int = EOS_ID,
) -> Step:
  """The fixed tree that is best for measured acceptance by child rank (Chen et al. 2024).

  Args:
    target: the model whose law is kept.
    draft: a cheaper model of the same vocabulary.
    acceptance: chance that each child of an accepted node is the accepted one,
      such as `trees.sequoia.acceptance_by_rank` measures.
    size: drafted nodes.
    max_depth: of the tree; None is no limit.
    eos_id: the token that ends a row.
  """
  return tree(target, draft, sequoia_lib.sequoia_growth(acceptance, size, max_depth), eos_id=eos_id)


def dyspec(
    target: LanguageModel,
    draft: LanguageModel,
    size: int,
    width: int = 8,
    max_depth: int | None = None,
    calls: int | None = None,
    draft_temperature: float = DRAFT_TEMPERATURE,
    eos_id: int = EOS_ID,
) -> Step:
  """A tree of `size` nodes grown anew each step where the draft is sure (Xiong et al. 2024, Algorithm 1).

  The arguments are those of `trees.dyspec.dyspec_growth` and `drafters.tree`.
  """
  growth = dyspec_lib.dyspec_growth(size, width, max_depth, calls)
  return tree(target, draft, growth, draft_temperature=draft_temperature, eos_id=eos_id)


def dyspec_threshold(
    target: LanguageModel,
    draft: LanguageModel,
    size: int,
    threshold: float | None = None,
    width: int = 8,
    max_depth: int | None = None,
    calls: int | None = None,
    draft_temperature: float = DRAFT_TEMPERATURE,
    eos_id: int = EOS_ID,
) -> Step:
  """A tree of at most `size` nodes, grown layer by layer (Xiong et al. 2024, Algorithm 2).

  The arguments are those of `trees.dyspec.dyspec_threshold_growth`; a threshold
  of None is 1 / size.
  """
  growth = dyspec_lib.dyspec_threshold_growth(size, threshold or 1 / size, width, max_depth, calls)
  return tree(target, draft, growth, draft_temperature=draft_temperature, eos_id=eos_id)
