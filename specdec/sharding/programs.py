"""The programs that decoding is made of, as functions and the shapes they are called with.

They are the ones that run: `generate` itself, and the model's own functions.
Weights are shapes alone, so that a model of any size costs nothing here.

Dimensions: B batch, S encoder length, L buffer length, N tokens scored at once.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import jax.numpy as jnp

from specdec import loop
from specdec import recipes
from specdec.adapters import flax_model
from specdec.interfaces import Context, LanguageModel, Params, Prompt, Step
from specdec.networks.t5 import T5
from specdec.probability import sampling as draw
from specdec.probability import transforms
from specdec.sharding import chips
from specdec.sharding import mesh as mesh_lib
from specdec.sharding.rules import Rules
from specdec.trees import topology


@dataclasses.dataclass(frozen=True)
class Workload:
  """What is decoded.

  Attributes:
    batch: B.
    encoder_length: S.
    max_new_tokens: longest output.
    pieces: of the vocabulary; logits beyond it are cut off. None keeps all.
    dtype: of the weights.
  """

  batch: int = 1
  encoder_length: int = 512
  max_new_tokens: int = 128
  pieces: int | None = None
  dtype: str = "bfloat16"

  def __post_init__(self):
    for name in ("batch", "encoder_length", "max_new_tokens"):
      if getattr(self, name) < 1:
        raise ValueError(f"workload: expected {name} of at least 1, found {getattr(self, name)}.")

  def prompt(self) -> Prompt:
    """Shapes of B requests whose prefix is BOS."""
    shape = jax.ShapeDtypeStruct
    return Prompt(
        shape((self.batch, self.encoder_length), jnp.int32),
        shape((self.batch, self.encoder_length), bool),
        shape((self.batch, 1), jnp.int32),
        shape((self.batch,), jnp.int32),
    )


class SizedModel(NamedTuple):
  """A model on a mesh, without values.

  Attributes:
    module: its network.
    model: its functions.
    params: shapes with shardings, `adapters.flax_model.T5Params`.
    rules: that placed them.
    mesh: where.
  """

  module: T5
  model: LanguageModel
  params: flax_model.T5Params
  rules: Rules
  mesh: Mesh


class Program(NamedTuple):
  """A function and the shapes that it is compiled for.

  Attributes:
    name: what it does.
    function: to compile.
    arguments: of it, shapes with shardings.
    donate: which of them give their memory to the result.
  """

  name: str
  function: Callable[..., Any]
  arguments: Sequence[Any]
  donate: tuple[int, ...] = ()


def sized_model(module: T5, mesh: Mesh, workload: Workload, split: bool = True) -> SizedModel:
  """`module` on `mesh`, its weights as shapes.

  Args:
    module: the network.
    mesh: of a slice, or of real devices.
    workload: says the dtype of the weights and the pieces.
    split: False keeps the whole model on every chip.
  """
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  stored = jax.eval_shape(module.init, jax.random.key(0), token, token)["params"]
  stored = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(workload.dtype)), stored)
  params = jax.eval_shape(lambda tree: flax_model.prepare(module, tree), stored)
  rules = mesh_lib.rules_for(module.config, mesh, split)
  params = chips.with_shardings(params, mesh_lib.parameter_shardings(params, mesh, rules))
  model = mesh_lib.shard_model(flax_model.t5_model(module), mesh, rules, workload.pieces)
  return SizedModel(module, model, params, rules, mesh)


def encode(sized: SizedModel, workload: Workload) -> Program:
  """The encoder and the cross-attention's keys and values: once a request."""
  length = workload.max_new_tokens + 2
  return Program(
      "encode",
      lambda params, prompt: sized.model.init(params, prompt, length),
      (sized.params, _requests(workload.prompt(), sized.mesh, workload)),
  )


def score(sized: SizedModel, workload: Workload, count: int) -> Program:
  """The network alone, on `count` tokens of a row at once; its caches are donated."""
  block = topology.chain(count)

  def run(params, state, tokens):
    scores, state = sized.model.score(params, state, tokens, block)
    return scores.logits, sized.model.commit(state, None, jnp.ones((workload.batch,), jnp.int32))

  state = open_state(sized, workload, 1 + workload.max_new_tokens + count)
  tokens = jax.ShapeDtypeStruct((workload.batch, count), jnp.int32)
  arguments = (sized.params, state, _requests(tokens, sized.mesh, workload))
  return Program(f"score {count}", run, arguments, donate=(1,))


def draw_token(sized: SizedModel, workload: Workload) -> Program:
  """One call of a draft: the network on one token, its law under the settings, and a draw from it."""
  transform, single = recipes.sampling_transform(), topology.chain(1)
  length = 1 + workload.max_new_tokens

  def run(params, state, context, token, uniform):
    scores, state = sized.model.score(params, state, token, single)
    log_q = transform(scores.logits, token, single, context).log_p
    return draw.from_law(uniform, log_q), log_q, state

  batch = workload.batch
  row = jax.ShapeDtypeStruct((batch,), jnp.int32)
  context = Context(jax.ShapeDtypeStruct((batch, length), jnp.int32), row, row, settings(batch))
  token, uniform = jax.ShapeDtypeStruct((batch, 1), jnp.int32), jax.ShapeDtypeStruct((batch, 1), jnp.float32)
  others = _requests((context, token, uniform), sized.mesh, workload)
  return Program("draft a token", run, (sized.params, open_state(sized, workload, length), *others), donate=(1,))


def decode(target: SizedModel, draft: SizedModel | None, gamma: int, workload: Workload) -> Program:
  """The whole of `loop.generate`: speculative with a draft, plain without."""
  if draft is None:
    step, params = recipes.autoregressive(target.model), Params(target.params)
  else:
    step, params = recipes.leviathan(target.model, draft.model, gamma), Params(target.params, draft.params)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), workload.batch))
  requests = (keys, workload.prompt(), settings(workload.batch))
  keys, prompt, sampling = _requests(requests, target.mesh, workload)
  return Program(
      "decode" if draft is None else f"decode speculatively, gamma {gamma}",
      _Generate(step, workload.max_new_tokens),
      (keys, params, prompt, sampling),
  )


@dataclasses.dataclass(frozen=True)
class _Generate:
  """`loop.generate` with its static arguments bound."""

  step: Step
  max_new_tokens: int

  def lower(self, keys, params, prompt, sampling):
    """As a jitted function's."""
    return loop.generate.lower(self.step, keys, params, prompt, sampling, self.max_new_tokens)

  def __call__(self, keys, params, prompt, sampling):
    return loop.generate(self.step, keys, params, prompt, sampling, self.max_new_tokens)


def open_state(sized: SizedModel, workload: Workload, length: int) -> Any:
  """The state of a model after `init`, as shapes with shardings."""
  model = flax_model.t5_model(sized.module)
  state = jax.eval_shape(lambda params, prompt: model.init(params, prompt, length), sized.params, workload.prompt())
  return chips.with_shardings(state, mesh_lib.request_shardings(state, sized.mesh, workload.batch, sized.rules))


def bytes_on_a_chip(tree: Any) -> int:
  """Bytes of one chip's share of shapes with shardings, without the padding of tiles."""
  share = lambda leaf: jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
  leaves = [share(leaf) for leaf in jax.tree.leaves(tree)]
  return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def weight_sizes(program: Program) -> frozenset[int]:
  """Elements of each weight matrix of a program on a chip, and of the parts of stacked ones."""
  params = next(a for a in program.arguments if isinstance(a, (flax_model.T5Params, Params)))
  shapes = [leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
  sizes = {math.prod(shape) for shape in shapes}
  return frozenset(sizes | {math.prod(shape) // parts for shape in shapes if len(shape) == 3 for parts in shape if parts < 8})


def read_once(sized: SizedModel, workload: Workload, count: int) -> int:
  """Bytes that scoring must read on a chip: weights of the decoder, its output layer, and both caches, each once.

  The embedding is looked up and not read; the kernels of the cross-attention's
  keys and values are used once a request.
  """
  decoder = sized.params.decoder
  weights = decoder._replace(
      embedding=decoder.embedding if decoder.logits is None else (),
      layers=tuple(layer._replace(cross_kv=()) for layer in decoder.layers),
  )
  state = open_state(sized, workload, 1 + workload.max_new_tokens + count)
  return bytes_on_a_chip((weights, state))


def settings(batch: int) -> Any:
  """Shapes of the settings of B requests."""
  return jax.eval_shape(lambda: transforms.sampling(batch))


def _requests(tree: Any, mesh: Mesh, workload: Workload) -> Any:
  return chips.with_shardings(tree, mesh_lib.request_shardings(tree, mesh, workload.batch))
