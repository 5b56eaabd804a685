"""Named methods: each picks the arguments of the core and calls it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specdec.acceptance.rejection import rejection
from specdec.autoregressive import autoregressive_step
from specdec.drafters.model import model_drafter
from specdec.drafters.ngram import ngram_drafter
from specdec.interfaces import Context, Drafter, LanguageModel, Law, Step, Transform
from specdec.probability import transforms
from specdec.step import speculative_step
from specdec.trees.topology import Topology

Array = jax.Array

EOS_ID = 1


def sampling_transform(eos_id: int = EOS_ID) -> Transform:
  """The one transform that target, draft and baseline share: `probability.transforms` at every node."""

  def transform(logits: Array, tokens: Array, topology: Topology, context: Context) -> Law:
    settings = context.sampling
    new_tokens = (context.length - context.prefix_length)[:, None] + topology.depth[None, :]
    seen = None
    if settings.repetition_penalty is not None:
      size = logits.shape[-1]
      before = transforms.seen_tokens(context.tokens, context.length, size)
      marks = jax.nn.one_hot(tokens, size, dtype=jnp.float32)
      seen = before[:, None] | (jnp.einsum("nm,bmv->bnv", topology.mask.astype(jnp.float32), marks) > 0)
    processed = transforms.process(logits, settings, transforms.Prefix(new_tokens, seen), eos_id)
    return Law(transforms.to_law(processed, settings), processed)

  return transform


def autoregressive(target: LanguageModel, eos_id: int = EOS_ID) -> Step:
  """Plain decoding, the baseline."""
  return autoregressive_step(target, sampling_transform(eos_id), eos_id)


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
