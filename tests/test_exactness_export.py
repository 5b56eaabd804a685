"""The whole of `generate` lowers for TPU, at tiny size and at T5-XXL size by shapes alone.

No TPU and no weights are needed: `jax.export` lowers for a named platform.
"""

import jax
from jax import export
import jax.numpy as jnp
import numpy as np

from specdec import loop
from specdec import models
from specdec import recipes
from specdec.adapters import flax_model
from specdec.interfaces import Params, Prompt
from specdec.networks.t5 import T5, T5Config
from specdec.probability.transforms import sampling
from tests import fakes


def xxl_and_small():
  """T5 1.1's sizes."""
  common = dict(vocab_size=32128, head_dim=64, dtype="bfloat16")
  xxl = T5Config(emb_dim=4096, num_heads=64, mlp_dim=10240, num_encoder_layers=24, num_decoder_layers=24, **common)
  small = T5Config(emb_dim=512, num_heads=6, mlp_dim=1024, num_encoder_layers=8, num_decoder_layers=8, **common)
  return T5(xxl), T5(small)


def shapes_of(module, dtype):
  """The shapes of a module's parameters, laid out for decoding."""
  one = jax.ShapeDtypeStruct((1, 2), jnp.int32)
  variables = jax.eval_shape(module.init, jax.random.key(0), one, one)["params"]
  variables = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), variables)
  return jax.eval_shape(lambda params: flax_model.prepare(module, params), variables)


def lowered_for_tpu(target, draft, params, batch, encoder, new_tokens, gamma):
  """The exported program; keys enter as their raw bits."""
  step = recipes.leviathan(
      flax_model.t5_model(target, target.config.vocab_size), flax_model.t5_model(draft, target.config.vocab_size), gamma
  )

  def run(key_bits, params, prompt, setting):
    return loop.generate(step, jax.random.wrap_key_data(key_bits), params, prompt, setting, new_tokens)

  prompt = Prompt(
      jax.ShapeDtypeStruct((batch, encoder), jnp.int32), jax.ShapeDtypeStruct((batch, encoder), jnp.bool_),
      jax.ShapeDtypeStruct((batch, 1), jnp.int32), jax.ShapeDtypeStruct((batch,), jnp.int32),
  )  # fmt: skip
  setting = jax.eval_shape(lambda: sampling(batch))
  key_bits = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
  return export.export(jax.jit(run), platforms=["tpu"])(key_bits, params, prompt, setting)


def assert_whole(exported, batch, new_tokens):
  assert exported.platforms == ("tpu",)
  assert exported.out_avals[0].shape == (batch, new_tokens)
  module = exported.mlir_module()
  assert "stablehlo.while" in module
  assert "callback" not in module


def test_a_tiny_pair_lowers_for_tpu():
  pair = fakes.standard_pair()
  params = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), Params(pair.target_params, pair.draft_params)
  )
  assert_whole(lowered_for_tpu(pair.module, pair.draft_module, params, 2, 8, 12, 3), 2, 12)


def test_the_shipped_pair_lowers_for_tpu_by_shapes():
  target, draft = (T5(models.SHIPPED["ende"][role]) for role in ("target", "draft"))
  params = Params(shapes_of(target, jnp.float32), shapes_of(draft, jnp.float32))
  assert_whole(lowered_for_tpu(target, draft, params, 1, 64, 64, 7), 1, 64)


def test_xxl_with_a_small_draft_lowers_for_tpu_by_shapes():
  target, draft = xxl_and_small()
  params = Params(shapes_of(target, jnp.bfloat16), shapes_of(draft, jnp.bfloat16))
  size = lambda tree: sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
  assert 11.0e9 < size(params.target) < 11.3e9 and 75e6 < size(params.draft) < 80e6  # As published.
  assert_whole(lowered_for_tpu(target, draft, params, 1, 128, 128, 7), 1, 128)
