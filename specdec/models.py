"""A network, its weights and its vocabulary, held together."""

from collections.abc import Callable, Sequence
import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec import recipes
from specdec.adapters import flax_model
from specdec.checkpoints import formats
from specdec.data import prompts
from specdec.data import vocabularies
from specdec.drafters import ngram
from specdec.drafters import ngram_counts
from specdec.interfaces import Drafter, LanguageModel, Prompt, Step, Transform
from specdec.loop import Output
from specdec.networks.t5 import T5, T5Config
from specdec.sharding import mesh as mesh_lib

Array = jax.Array

PRETRAINED = "pretrained:"


@dataclasses.dataclass(frozen=True)
class Model:
  """What decoding needs of a model.

  Attributes:
    model: its pure functions.
    params: its parameters, laid out for decoding, on the device.
    vocabulary: its vocabulary.
    drafter: `(gamma, transform) -> Drafter` when it drafts in a way of its own;
      None drafts with `model`, one call a token.
    module: the Flax module that `params` were laid out from; None for a network
      of another kind.
  """

  model: LanguageModel
  params: Any
  vocabulary: vocabularies.Vocabulary
  drafter: Callable[[int, Transform], Drafter] | None = None
  module: T5 | None = None

  def drafts_for(self, target: "Model", gamma: int) -> Step:
    """The step in which this model drafts `gamma` tokens for `target`."""
    if self.drafter is None:
      return recipes.leviathan(target.model, self.model, gamma)
    return recipes.drafted_by(target.model, self.drafter, gamma)

  def prompt(self, texts: Sequence[str], length: int | None = None) -> Prompt:
    """Encodes source texts into a batch of `length` (default: the longest) encoder tokens."""
    requests = [prompts.Request(t, (*self.vocabulary.encode(t), vocabularies.EOS_ID)) for t in texts]
    length = length or max(len(r.input_ids) for r in requests)
    requests = [prompts.fit_length(r, length) for r in requests]
    return Prompt(*map(jnp.asarray, prompts.to_arrays(requests, len(texts), length)))

  def texts(self, output: Output) -> list[str]:
    """Decodes the rows of an `Output`."""
    tokens, lengths = np.asarray(output.tokens), np.asarray(output.lengths)
    return [self.vocabulary.decode(row[:n]) for row, n in zip(tokens, lengths)]


def resolve(path: str) -> str:
  """Expands 'pretrained:NAME' to the folder of shipped files; other paths stay."""
  if not path.startswith(PRETRAINED):
    return path
  return os.path.join(os.path.dirname(os.path.abspath(__file__)), "pretrained", path[len(PRETRAINED) :])


def vocabulary(path: str, extra_ids: int = 0) -> vocabularies.SentencePieceVocabulary:
  """A SentencePiece vocabulary from a path that `resolve` knows."""
  return vocabularies.SentencePieceVocabulary(resolve(path), extra_ids)


def load_model(
    module: T5,
    checkpoint: str,
    vocabulary: vocabularies.Vocabulary,
    dtype: Any = "float32",
    vocab_size: int | None = None,
    mesh: Any = None,
    split: bool = True,
) -> Model:
  """Loads a T5's weights and lays them out for decoding.

  Args:
    module: the Flax module.
    checkpoint: a folder of parameters or of a training run (see
      `checkpoints.from_orbax`), of T5X or of Hugging Face; 'pretrained:NAME' is a
      shipped one.
    vocabulary: that it was trained with.
    dtype: of the weights on the device.
    vocab_size: the effective vocabulary: ids from here on are never emitted.
      None is the number of pieces (T5: 32100 of 32128 logits).
    mesh: from `sharding.mesh.make_mesh`; the weights are read straight into
      their shards. None is one device.
    split: on a mesh, False keeps the whole model on every chip.

  Raises:
    ValueError: the checkpoint is missing, broken or of another model, or the
      vocabulary has more pieces than the model has logits.
  """
  language_model = flax_model.t5_model(module, vocabulary.size if vocab_size is None else vocab_size)
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  expected = jax.eval_shape(module.init, jax.random.key(0), token, token)["params"]
  if mesh is None:
    params = formats.load(resolve(checkpoint), dtype=dtype, expected=expected)
    return Model(language_model, flax_model.prepare(module, params), vocabulary, module=module)
  rules = mesh_lib.rules_for(module.config, mesh, split)
  where = lambda params: mesh_lib.parameter_shardings(params, mesh, rules)
  params = formats.load(resolve(checkpoint), dtype=dtype, expected=expected, shardings=where(expected))
  params = flax_model.prepare(module, params, where)
  effective = vocabulary.size if vocab_size is None else vocab_size
  model = mesh_lib.shard_model(flax_model.t5_model(module), mesh, rules, effective)
  return Model(model, params, vocabulary, module=module)


def random_model(module: T5, vocabulary: vocabularies.Vocabulary, seed: int = 0, sharpness: float = 1.0) -> Model:
  """A model of the right sizes and no use but to be timed: random weights, all logits kept.

  Args:
    module: the Flax module.
    vocabulary: of the prompts; ids beyond it may be emitted.
    seed: of the weights.
    sharpness: factor on all logits, whose standard deviation is about 1 without
      it, so that laws are nearly uniform. Trees that grow by what the draft says
      have the shapes of a trained draft's only if its laws are as peaked.

  Raises:
    ValueError: sharpness is not positive.
  """
  if not sharpness > 0:
    raise ValueError(f"sharpness: expected a factor above 0, found {sharpness}.")
  token = jnp.ones((1, 1), jnp.int32)

  @jax.jit
  def init(key):
    params = module.init(key, token, token)["params"]
    params["decoder"]["decoder_norm"]["scale"] *= sharpness
    return params

  params = init(jax.random.key(seed))
  return Model(flax_model.t5_model(module), flax_model.prepare(module, params), vocabulary, module=module)


_NGRAM = ngram.language_model()  # One, so that whatever is compiled for it is compiled once.


def load_ngram(path: str, vocabulary: vocabularies.Vocabulary, order: int | None = None) -> Model:
  """Loads n-gram tables as a draft.

  Args:
    path: what `--mode=fit_ngram` wrote.
    vocabulary: of the target.
    order: 1 unigram, 2 bigram, 3 trigram; None is the highest there is.

  Raises:
    ValueError: no such file, or counted with another vocabulary.
  """
  return Model(_NGRAM, ngram_counts.load(resolve(path), vocabulary.pieces(), order), vocabulary, ngram.ngram_drafter)


def pair(target: Model, draft: Model | None) -> tuple[Model, Model | None]:
  """Checks that a draft speaks the vocabulary of its target.

  Raises:
    ValueError: it does not; the message names the first piece that differs.
  """
  if draft is not None:
    vocabularies.check_same(target.vocabulary, draft.vocabulary)
  return target, draft


def pretrained(name: str = "ende") -> tuple[Model, Model]:
  """The shipped target and draft of `name`.

  Example:
    >>> target, draft = pretrained("ende")
    >>> target.vocabulary.size
    2048
  """
  if name not in SHIPPED:
    raise ValueError(f"pretrained: expected one of {sorted(SHIPPED)}, found {name!r}.")
  words = vocabulary(f"{PRETRAINED}{name}/vocabulary.model")
  load = lambda role, config: load_model(T5(config), f"{PRETRAINED}{name}/{role}", words)
  return pair(*(load(role, config) for role, config in SHIPPED[name].items()))


# The same sizes as gin/models/ende.gin; a test holds them together.
SHIPPED = {
    "ende": {
        "target": T5Config(
            vocab_size=2048, emb_dim=384, num_heads=4, num_encoder_layers=1, num_decoder_layers=4, mlp_dim=1152
        ),
        "draft": T5Config(
            vocab_size=2048,
            emb_dim=160,
            num_heads=2,
            num_encoder_layers=2,
            num_decoder_layers=1,
            mlp_dim=320,
            dropout_rate=0.0,
        ),
    },
}
