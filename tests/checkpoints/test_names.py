"""`checkpoints.names`: flatten, compare, take scanned layers apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.checkpoints import names
from specdec.networks import t5


def _tree(shapes):
  return names.unflatten({name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()})


def test_flatten_and_unflatten_are_inverse():
  tree = {"decoder": {"layers_0": {"mlp": {"wi_0": {"kernel": 1}, "wo": {"kernel": 2}}}, "norm": {"scale": 3}}, "e": 4}
  flat = names.flatten(tree)
  assert flat["decoder/layers_0/mlp/wi_0/kernel"] == 1 and len(flat) == 4
  assert names.unflatten(flat) == tree


def test_flatten_keeps_leaves_that_are_dictionaries():
  spec = {"driver": "zarr"}
  assert names.flatten({"a": {"b": spec}}, lambda node: "driver" in node) == {"a/b": spec}


@pytest.mark.parametrize("tree", [{"a/b": 1}, {"a": {0: 1}}])
def test_flatten_refuses_keys_that_are_no_names(tree):
  with pytest.raises(ValueError, match="strings without '/'"):
    names.flatten(tree)


@pytest.mark.parametrize("flat", [{"a": 1, "a/b": 2}, {"a/b": 2, "a": 1}, {"a/b": 1, "a/b/c/d": 2}])
def test_unflatten_refuses_a_name_inside_another(flat):
  with pytest.raises(ValueError, match="is an array"):
    names.unflatten(flat)


def test_check_accepts_what_fits_with_and_without_params_level():
  tree = _tree({"a/kernel": (2, 3), "b/scale": (3,)})
  names.check(tree, tree)
  names.check(tree, {"params": tree})
  names.check({"a": {"kernel": np.zeros((2, 3), np.int8)}, "b": {"scale": jnp.zeros(3)}}, tree)


def test_check_names_every_fault_at_once():
  found = _tree({"a/kernel": (3, 2), "b/scale": (3,), "c/one": (1,), "c/two": (2, 2)})
  expected = _tree({"a/kernel": (2, 3), "b/scale": (3,), "d/one": (4,), "d/two": ()})
  with pytest.raises(ValueError) as error:
    names.check(found, expected, "some/path")
  assert str(error.value).splitlines() == [
      "some/path: 5 of 6 parameters do not fit the model.",
      "  a/kernel: expected shape (2, 3), found (3, 2)",
      "  c/one: expected no such parameter, found shape (1,)",
      "  c/two: expected no such parameter, found shape (2, 2)",
      "  d/one: expected shape (4,), found no such parameter",
      "  d/two: expected shape (), found no such parameter",
  ]


def _scanned(same_tables=True, layers=3):
  """Random scanned parameters (E 6, H 2, D 4, M 5) and, by plain loops, what they mean."""
  rng = np.random.default_rng(0)
  scanned, plain = {}, {}

  def add(name, shape, joined):
    stack = name.split("/")[0]
    parts = [rng.normal(size=shape) for _ in range(layers)]
    scanned[f"{stack}/{name}"] = np.stack(parts, axis=1)
    for i, part in enumerate(parts):
      plain[name.replace("/", f"/layers_{i}/", 1)] = part.reshape(joined)

  for attention in ("encoder/attention", "decoder/self_attention", "decoder/encoder_decoder_attention"):
    for kernel in ("query", "key", "value"):
      add(f"{attention}/{kernel}/kernel", (6, 2, 4), (6, 8))
    add(f"{attention}/out/kernel", (2, 4, 6), (8, 6))
  for stack, norms in (("encoder", ("attention", "mlp")), ("decoder", ("self_attention", "cross_attention", "mlp"))):
    add(f"{stack}/mlp/wi_0/kernel", (6, 5), (6, 5))
    add(f"{stack}/mlp/wi_1/kernel", (6, 5), (6, 5))
    add(f"{stack}/mlp/wo/kernel", (5, 6), (5, 6))
    for norm in norms:
      add(f"{stack}/pre_{norm}_layer_norm/scale", (6,), (6,))
    tables = [rng.normal(size=(2, 32))] * layers
    plain[f"{stack}/relpos_bias/rel_embedding"] = tables[0]
    if not same_tables:
      tables = [table + i for i, table in enumerate(tables)]
    scanned[f"{stack}/{stack}/relpos_bias/rel_embedding"] = np.stack(tables, axis=1)
    for name, shape in ((f"{stack}/{stack}_norm/scale", (6,)), ("decoder/logits_dense/kernel", (6, 9))):
      scanned[name] = plain[name] = rng.normal(size=shape)
  scanned["token_embedder/embedding"] = plain["token_embedder/embedding"] = rng.normal(size=(9, 6))
  return names.unflatten(scanned), plain


def test_unscan_equals_plain_slicing_and_fits_the_network():
  scanned, plain = _scanned()
  assert names.is_scanned(scanned)
  params = names.unscan(scanned)
  flat = names.flatten(params)
  assert flat.keys() == plain.keys()
  for name, array in plain.items():
    np.testing.assert_array_equal(flat[name], array, err_msg=name)
  config = t5.T5Config(9, 6, 2, 4, 3, 3, 5)
  tokens = jnp.ones((1, 2), jnp.int32)
  names.check(params, jax.eval_shape(t5.T5(config).init, jax.random.key(0), tokens, tokens))


def test_unscan_of_descriptions_gives_the_same_shapes():
  scanned, plain = _scanned()
  described = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), scanned)
  flat = names.flatten(names.unscan(described))
  assert {name: leaf.shape for name, leaf in flat.items()} == {name: leaf.shape for name, leaf in plain.items()}


def test_unscan_leaves_other_parameters_alone():
  _, plain = _scanned()
  params = names.unflatten(plain)
  assert not names.is_scanned(params)
  assert names.unscan(params) == params


def test_unscan_refuses_position_tables_that_differ():
  scanned, _ = _scanned(same_tables=False)
  with pytest.raises(ValueError, match="relpos_bias/rel_embedding: expected one table in all layers"):
    names.unscan(scanned)


def test_unscan_refuses_uneven_layers():
  scanned, _ = _scanned()
  scanned["decoder"]["decoder"]["mlp"]["wo"]["kernel"] = np.zeros((5, 2, 6))
  with pytest.raises(ValueError, match="as many layers along axis 1"):
    names.unscan(scanned)
