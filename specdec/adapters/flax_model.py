"""A T5 of `networks` as a `LanguageModel`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.interfaces import LanguageModel, Prompt, Scores
from specdec.networks import cache as cache_lib
from specdec.networks import t5_decoder
from specdec.networks.t5 import T5
from specdec.trees.topology import Topology, chain

Array = jax.Array


class T5Params(NamedTuple):
  """A T5's parameters, laid out once for decoding; each weight is held once.

  Attributes:
    encoder: the encoder's parameters under T5X's names.
    decoder: the decoder's, see `networks.t5_decoder`; it also holds the
      embedding, which the encoder shares.
  """

  encoder: Mapping[str, Any]
  decoder: t5_decoder.DecoderWeights


def prepare(
    module: T5, params: Mapping[str, Any], shardings: Callable[[T5Params], T5Params] | None = None
) -> T5Params:
  """Lays out the parameters of `module` for decoding. Drop `params` afterwards.

  Args:
    module: the Flax module.
    params: its parameters (the collection 'params'), T5X's names.
    shardings: from the result's shapes to where each array goes; None is one
      device.
  """
  used = {name: params[name] for name in ("decoder", "token_embedder")}
  encoder, where = None, None
  if shardings is not None:
    shapes = T5Params(params["encoder"], jax.eval_shape(lambda p: t5_decoder.lay_out(p, module.config), used))
    encoder, where = shardings(shapes)
  decoder = jax.jit(t5_decoder.lay_out, static_argnums=1, out_shardings=where)(used, module.config)
  return T5Params(jax.device_put(params["encoder"], encoder), decoder)


def take_apart(module: T5, params: T5Params) -> dict[str, Any]:
  """The inverse of `prepare`: the parameters of `module` under T5X's names."""
  return {"encoder": params.encoder, **jax.jit(t5_decoder.take_apart, static_argnums=1)(params.decoder, module.config)}


def t5_model(module: T5, vocab_size: int | None = None, copies: int = 1) -> LanguageModel:
  """`module` as pure functions over `T5Params`.

  Args:
    module: the Flax module; only its configuration and encoder are used.
    vocab_size: the pieces of the vocabulary. Logits beyond it (T5 has 32128 for
      32100 pieces) are cut off: such ids do not exist for any sampler. None
      keeps all.
    copies: rows of a prompt that share a source come in groups of this many,
      one after the other, and are encoded once.

  Raises:
    ValueError: the model has fewer logits than `vocab_size`.
  """
  config = module.config
  if vocab_size is not None and vocab_size > config.vocab_size:
    raise ValueError(
        f"vocabulary: it has {vocab_size} pieces, and the model only {config.vocab_size} logits; "
        "they were not trained together."
    )

  def init(params: T5Params, prompt: Prompt, buffer_length: int) -> t5_decoder.DecoderState:
    variables = {"encoder": params.encoder, "token_embedder": {"embedding": params.decoder.embedding}}
    sources, mask = prompt.tokens[::copies], prompt.mask[::copies]
    encoded = module.apply({"params": variables}, sources, mask, method=module.encode)
    if copies > 1:
      encoded = jnp.repeat(encoded, copies, axis=0)
    state = t5_decoder.start(params.decoder, config, encoded, prompt.mask, buffer_length)
    width = prompt.prefix.shape[1]
    if width == 1:
      return state
    _, state = score(params, state, prompt.prefix[:, :-1], chain(width - 1))
    return commit(state, None, prompt.prefix_length - 1)

  def score(params: T5Params, state, tokens: Array, topology: Topology) -> tuple[Scores, t5_decoder.DecoderState]:
    mask = None if topology.is_chain else topology.mask
    shape = (topology.depth, mask, topology.columns)
    logits, hidden, state = t5_decoder.score(params.decoder, config, state, tokens, *shape)
    return Scores(logits[..., :vocab_size], hidden), state

  def commit(state: t5_decoder.DecoderState, path: Array | None, count: Array) -> t5_decoder.DecoderState:
    if path is None:
      return state._replace(cache=cache_lib.commit(state.cache, count))
    return state._replace(cache=cache_lib.commit_path(state.cache, path, count))

  return LanguageModel(init, score, commit)
