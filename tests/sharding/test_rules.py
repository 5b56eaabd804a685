"""Names to axes: every parameter of every layout has its rule, and nothing is split that does not divide."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from specdec import interfaces
from specdec.drafters.model import ModelDraftState
from specdec.networks import cache as cache_lib
from specdec.networks import t5_decoder
from specdec.networks.t5 import T5, T5Config
from specdec.sharding import rules

CONFIG = T5Config(32, emb_dim=16, num_heads=4, head_dim=4, num_encoder_layers=1, num_decoder_layers=2, mlp_dim=24)


def raw_shapes(config=CONFIG):
  """T5X's tree, as shapes."""
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  return jax.eval_shape(T5(config).init, jax.random.key(0), token, token)["params"]


def laid_out(out_first, config=CONFIG):
  return jax.eval_shape(lambda p: t5_decoder.lay_out(p, config, out_first), raw_shapes(config))


def sizes(config=CONFIG):
  return {
      "embed": config.emb_dim, "vocab": config.vocab_size, "mlp": config.mlp_dim, "heads": config.num_heads,
      "joined_kv": config.num_heads * config.head_dim, "relpos_buckets": config.relative_attention_num_buckets,
  }  # fmt: skip


def test_every_stored_parameter_has_the_axes_of_its_shape():
  """The sizes are all different, so that a wrong name shows."""
  axes = rules.parameter_axes(raw_shapes())
  shapes = {
      jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
      for path, leaf in jax.tree_util.tree_leaves_with_path(raw_shapes())
  }
  known = {**sizes(), "joined_kv": 16, "embed": 16}
  assert axes.keys() == shapes.keys()
  for name, shape in shapes.items():
    assert tuple(known[axis] for axis in axes[name]) == shape, name
  assert axes["encoder/layers_0/attention/out/kernel"] == ("joined_kv", "embed")
  assert axes["decoder/layers_1/mlp/wi_1/kernel"] == ("embed", "mlp")
  assert axes["token_embedder/embedding"] == ("vocab", "embed")


@pytest.mark.parametrize("activations", [("relu",), ("gelu", "linear")])
@pytest.mark.parametrize("out_first", [True, False])
def test_every_laid_out_kernel_has_the_axes_of_its_shape(out_first, activations):
  config = dataclasses.replace(CONFIG, emb_dim=20, mlp_activations=activations)  # E differs from H * D.
  weights = laid_out(out_first, config)
  known = {**sizes(config), "stack": None}
  axes = rules.parameter_axes(weights)
  leaves = jax.tree_util.tree_leaves_with_path(weights, is_leaf=lambda x: hasattr(x, "out_first"))
  assert len(axes) == len(leaves) == 3 + 1 + 2 * 10
  for path, leaf in leaves:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    array = getattr(leaf, "array", leaf)
    assert len(axes[name]) == array.ndim and all(
        known[axis] in (None, size) for axis, size in zip(axes[name], array.shape)
    ), name
  assert axes["layers/0/self_qkv"] == (("stack", "joined_kv", "embed") if out_first else ("embed", "stack", "joined_kv"))
  assert axes["layers/1/mlp_out"] == (("embed", "mlp") if out_first else ("mlp", "embed"))


def test_specs_keep_the_structure():
  weights = laid_out(True)
  specs = rules.parameter_specs(weights, rules.SPLIT)
  assert jax.tree.structure(specs) == jax.tree.structure(weights)
  assert specs.layers[0].self_qkv.array == P(None, "model", None)
  assert specs.layers[0].cross_kv == P(None, None, "model")
  assert specs.layers[0].mlp_out.array == P(None, "model")
  assert specs.embedding == P("model", None)
  assert specs.relative_bias == P("model", None)
  whole = rules.parameter_specs(weights, rules.WHOLE)
  assert all(all(axis is None for axis in spec) for spec in jax.tree.leaves(whole))


def test_no_product_is_split_on_both_sides():
  """Each layer needs one sum over chips for each product whose contracted axis is split: three."""
  for layer in rules.parameter_specs(laid_out(False), rules.SPLIT).layers:
    contracted = [getattr(layer, name).array[0] for name in ("self_qkv", "self_out", "cross_query", "cross_out")]
    contracted += [layer.mlp_in.array[0], layer.mlp_out.array[0]]
    assert contracted == [None, "model", None, "model", None, "model"]


@pytest.mark.parametrize(
    "heads, mlp, kept",
    [(8, 32, {"vocab", "mlp", "heads", "joined_kv", "batch"}), (6, 32, {"vocab", "mlp", "batch"}), (8, 30, {"vocab", "heads", "joined_kv", "batch"})],
)
def test_fit_leaves_whole_what_does_not_divide(heads, mlp, kept):
  """384 = 6 * 64 columns of q would divide by 4, but not its heads."""
  fitted = rules.fit(rules.SPLIT, {"heads": heads, "mlp": mlp, "vocab": 64, "joined_kv": heads * 64}, {"data": 2, "model": 4})
  assert fitted.keys() == kept


def state():
  cache = cache_lib.empty(2, 6, 4, 5, 7, jnp.float32)
  zeros = lambda *shape: jnp.zeros(shape)
  model = t5_decoder.DecoderState(cache, (zeros(6, 4, 3, 5),), (zeros(6, 4, 3, 5),), zeros(6, 1, 1, 3), zeros(4, 7))
  draft = ModelDraftState(model, zeros(6))
  return interfaces.DecodeState(zeros(6, 9), zeros(6), zeros(6), zeros(6), zeros(6), {"temperature": zeros(6)}, model, draft)


def test_a_state_is_split_by_rows_and_heads():
  specs = rules.state_specs(state(), rules.SPLIT, 6)
  for model in (specs.target, specs.draft.model):
    assert set(model.cache.keys + model.cache.values + model.cross_keys) == {P("data", "model", None, None)}
    assert model.cross_bias == P("data", None, None, None)
    assert model.distance_bias == P("model", None)
    assert model.cache.length == P("data") and model.cache.pending == P()
  assert specs.tokens == P("data", None) and specs.stop == P("data") and specs.sampling["temperature"] == P("data")
  axes = rules.state_axes(state(), 6)
  assert axes["target/cache/keys/1"] == ("batch", "heads", "length", "kv")


def test_arrays_of_other_shapes_stay_whole():
  specs = rules.state_specs({"table": np.ones((5, 3)), "keys": np.ones((6, 2))}, rules.SPLIT, 6)
  assert specs == {"table": P(), "keys": P("data", None)}
  assert rules.parameter_axes({"medusa_head": np.ones((2, 2))}) == {"medusa_head": ()}


def test_a_parameter_of_another_rank_is_refused():
  with pytest.raises(ValueError, match="wo/kernel: expected the axes"):
    rules.parameter_axes({"wo": {"kernel": np.ones((2, 2, 2, 2))}})
