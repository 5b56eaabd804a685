"""`checkpoints.from_huggingface` against what Hugging Face computed, and on damaged files.

`tests/fixtures/huggingface` was written by `tests/fixtures/make_huggingface.py`.
"""

import json
import pathlib
import shutil
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from specdec.checkpoints import formats
from specdec.checkpoints import from_huggingface
from specdec.checkpoints import huggingface_names
from specdec.checkpoints import names
from specdec.networks.t5 import T5, T5Config

FOLDER = pathlib.Path(__file__).parents[1] / "fixtures" / "huggingface"
MODELS = ("t5_1_0", "t5_1_1", "mt5")


@pytest.fixture
def copy(tmp_path):
  """A function that copies a fixture to where a test may damage it."""
  return lambda name: pathlib.Path(shutil.copytree(FOLDER / name, tmp_path / name))


def stored(folder):
  """Every array of a folder, by the safetensors library itself."""
  return {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in safetensors.numpy.load_file(file).items()}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_hugging_face_s(name):
  params, config = from_huggingface.load_with_config(FOLDER / name)
  assert config.logits_via_embedding == (name == "t5_1_0")
  assert config.mlp_activations == (("relu",) if name == "t5_1_0" else ("gelu", "linear"))
  assert config.relative_attention_num_buckets == (16 if name == "mt5" else 32)
  module = T5(config)
  with np.load(FOLDER / name / "reference.npz") as reference, jax.default_matmul_precision("highest"):
    tokens, fed = reference["encoder_input_tokens"], reference["decoder_input_tokens"]
    encoded = module.apply({"params": jax.tree.map(np.asarray, params)}, jax.numpy.asarray(tokens), method="encode")
    logits = module.apply({"params": params}, jax.numpy.asarray(tokens), jax.numpy.asarray(fed))
    scale = np.abs(reference["logits"]).max()
    assert np.abs(reference["logits"]).std() > 0.1
    np.testing.assert_allclose(logits, reference["logits"], atol=1e-4 * scale)
    seen = tokens > 0
    np.testing.assert_allclose(np.asarray(encoded)[seen], reference["encoded"][seen], atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_arrays_are_the_stored_ones(name, monkeypatch):
  monkeypatch.setattr(from_huggingface, "PIECE_BYTES", 100)  # Pieces of one or two rows.
  raw = stored(FOLDER / name)
  params, config = from_huggingface.load_with_config(FOLDER / name)
  flat = names.flatten(params)
  assert len(flat) == len(raw)
  for ours, place in huggingface_names.places(config).items():
    expected = raw[place.name].T if place.transposed else raw[place.name]
    np.testing.assert_array_equal(flat[ours], expected, err_msg=ours)
  rounded = names.flatten(from_huggingface.load(FOLDER / name, dtype="bfloat16"))
  for ours, array in flat.items():
    np.testing.assert_array_equal(rounded[ours], array.astype(ml_dtypes.bfloat16), err_msg=ours)


def test_place_takes_each_array_as_it_is_read():
  seen = []
  params = from_huggingface.load(FOLDER / "mt5", place=lambda name, array: seen.append(name) or jax.device_put(array))
  assert sorted(seen) == sorted(names.flatten(params))
  assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shard_bytes", [1 << 30, 6000])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_round_trip(name, shard_bytes, dtype, tmp_path):
  params, config = from_huggingface.load_with_config(FOLDER / name)
  from_huggingface.save(tmp_path / "out", params, config, dtype, shard_bytes)
  again, same = from_huggingface.load_with_config(tmp_path / "out")
  assert same == config
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.astype(dtype or a.dtype), b), params, again)
  raw, written = stored(FOLDER / name), stored(tmp_path / "out")
  assert written.keys() == raw.keys()
  index = tmp_path / "out" / "model.safetensors.index.json"
  assert index.exists() == (shard_bytes == 6000)
  if index.exists():
    assert json.loads(index.read_text())["weight_map"].keys() == raw.keys()


def test_save_replaces_only_when_told(tmp_path):
  params, config = from_huggingface.load_with_config(FOLDER / "t5_1_0")
  from_huggingface.save(tmp_path / "out", params, config)
  with pytest.raises(ValueError, match="found one; choose another path or overwrite=True"):
    from_huggingface.save(tmp_path / "out", params, config)
  from_huggingface.save(tmp_path / "out", jax.tree.map(np.zeros_like, params), config, overwrite=True)
  assert not any(leaf.any() for leaf in jax.tree.leaves(from_huggingface.load(tmp_path / "out")))
  (tmp_path / "other").mkdir()
  with pytest.raises(ValueError, match="found something else; choose another path"):
    from_huggingface.save(tmp_path / "other", params, config, overwrite=True)
  with pytest.raises(ValueError, match="decoder/logits_dense/kernel: expected shape"):
    from_huggingface.save(tmp_path / "new", params, T5Config(40, 12, 3, 4, 2, 1, 20, ("relu",)))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_every_fault_is_in_one_message(copy):
  folder = copy("t5_1_0")
  raw = stored(folder)
  kernel = "encoder.block.1.layer.1.DenseReluDense.wi.weight"
  raw["decoder.extra.weight"] = np.ones((2, 3), np.float32)
  raw[kernel] = np.ones((5, 12), np.float32)
  del raw["decoder.final_layer_norm.weight"], raw["encoder.block.0.layer.0.SelfAttention.q.weight"]
  safetensors.numpy.save_file(raw, folder / "model.safetensors")
  with pytest.raises(ValueError) as error:
    from_huggingface.load(folder)
  assert str(error.value).splitlines() == [
      f"{folder}: 4 of 35 parameters do not fit the model.",
      "  decoder.extra.weight: expected no such parameter, found shape (2, 3)",
      "  decoder.final_layer_norm.weight: expected shape (12,), found no such parameter",
      "  encoder.block.0.layer.0.SelfAttention.q.weight: expected shape (12, 12), found no such parameter",
      f"  {kernel}: expected shape (20, 12), found (5, 12)",
  ]


def test_the_model_asked_for_is_compared_before_arrays_are_read(monkeypatch):
  monkeypatch.setattr(from_huggingface, "_read", None)
  expected = huggingface_names.parameter_shapes(T5Config(40, 12, 3, 4, 2, 2, 20, ("relu",), True))
  with pytest.raises(ValueError, match="decoder/layers_1/mlp/wo/kernel: expected shape .20, 12., found no such parameter"):
    from_huggingface.load(FOLDER / "t5_1_0", expected=expected)


def test_copies_of_the_embedding_must_be_copies(copy):
  """Files of older transformers hold the embedding up to four times, and a table that nothing uses."""
  folder = copy("t5_1_0")
  raw = stored(folder)
  for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
    raw[name] = raw["shared.weight"].copy()
  raw["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = np.ones((32, 3), np.float32)
  safetensors.numpy.save_file(raw, folder / "model.safetensors")
  same = from_huggingface.load(folder)
  jax.tree.map(np.testing.assert_array_equal, same, from_huggingface.load(FOLDER / "t5_1_0"))
  raw["decoder.embed_tokens.weight"][3, 4] += 1
  safetensors.numpy.save_file(raw, folder / "model.safetensors")
  with pytest.raises(ValueError, match="expected decoder.embed_tokens.weight to equal shared.weight"):
    from_huggingface.load(folder)


def edit(folder, **changes):
  file = folder / "config.json"
  data = json.loads(file.read_text()) | changes
  file.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def test_tied_without_scaling_copies_the_embedding(copy):
  folder = copy("t5_1_0")
  edit(folder, scale_decoder_outputs=False, tie_word_embeddings=True)
  params, config = from_huggingface.load_with_config(folder)
  assert not config.logits_via_embedding
  np.testing.assert_array_equal(params["decoder"]["logits_dense"]["kernel"], params["token_embedder"]["embedding"].T)
  edit(folder, scale_decoder_outputs=None, tie_word_embeddings=False)  # As T5 1.1 files said it before transformers 5.
  with pytest.raises(ValueError, match="lm_head.weight: expected shape .40, 12., found no such parameter"):
    from_huggingface.load(folder)


def test_without_config_json_shapes_tell(copy):
  for name in MODELS:
    expected = from_huggingface.load_with_config(FOLDER / name)
    folder = copy(name)
    (folder / "config.json").unlink()
    assert from_huggingface.read_config(folder) is None
    params, config = from_huggingface.load_with_config(folder)
    assert config == expected[1]
    jax.tree.map(np.testing.assert_array_equal, params, expected[0])


def test_a_configuration_that_is_not_ours_names_everything(copy):
  folder = copy("t5_1_1")
  edit(folder, model_type="umt5", feed_forward_proj="gelu", layer_norm_epsilon=1e-5, d_model=None)
  with pytest.raises(ValueError) as error:
    from_huggingface.load(folder)
  for part in (
      "config.json: not a model that networks.t5 can run",
      "model_type: expected 't5' or 'mt5', found 'umt5'",
      "d_model: expected a whole number, found None",
      "feed_forward_proj: expected one of relu, gelu_new",
      "layer_norm_epsilon: expected 1e-06, found 1e-05",
  ):
    assert part in str(error.value)


def test_damaged_and_missing_files(copy, tmp_path):
  folder = copy("t5_1_1")
  shard = folder / "model-00002-of-00004.safetensors"
  whole = shard.read_bytes()
  shard.write_bytes(whole[: len(whole) // 2])
  with pytest.raises(ValueError, match="expected a whole safetensors file, found one that cannot be read"):
    from_huggingface.load(folder)
  shard.unlink()
  with pytest.raises(ValueError, match="found no model-00002-of-00004.safetensors; copy them too"):
    from_huggingface.load(folder)
  index = folder / "model.safetensors.index.json"
  index.write_text(json.dumps({"weight_map": {"shared.weight": "../model.safetensors"}}))
  with pytest.raises(ValueError, match="expected a 'weight_map' from names to files beside it"):
    from_huggingface.load(folder)
  index.write_text("{")
  with pytest.raises(ValueError, match="expected JSON, found something else"):
    from_huggingface.load(folder)
  (tmp_path / "empty").mkdir()
  with pytest.raises(ValueError, match="expected model.safetensors or pytorch_model.bin .* found an empty folder"):
    from_huggingface.load(tmp_path / "empty")
  with pytest.raises(ValueError, match="expected a checkpoint folder, found nothing"):
    from_huggingface.load(tmp_path / "nowhere")
  quantised = copy("mt5")
  raw = stored(quantised) | {"shared.weight": np.ones((40, 12), np.int8)}
  safetensors.numpy.save_file(raw, quantised / "model.safetensors")
  with pytest.raises(ValueError, match="expected floating-point numbers in shared.weight, found I8"):
    from_huggingface.load(quantised)


def test_an_index_decides_where_an_array_is_read_from(copy):
  folder = copy("t5_1_1")
  raw = safetensors.numpy.load_file(folder / "model-00004-of-00004.safetensors")
  raw["shared.weight"] = np.zeros((40, 12), np.float32)  # The index says that another shard holds it.
  safetensors.numpy.save_file(raw, folder / "model-00004-of-00004.safetensors")
  assert from_huggingface.load(folder)["token_embedder"]["embedding"].any()


def test_the_format_is_found():
  assert formats.format_of(FOLDER / "mt5") == "huggingface"
  assert formats.format_of(FOLDER.parent / "t5x") == "t5x"
  params = formats.load(FOLDER / "t5_1_0", dtype="bfloat16")
  assert params["token_embedder"]["embedding"].dtype == ml_dtypes.bfloat16


PEAK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from specdec.checkpoints import from_huggingface
import jax
def status(key):
  with open("/proc/self/status") as file:
    return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024
if sys.argv[4] == "bin":
  import torch
from_huggingface.load(sys.argv[5])  # What is imported and traced once is not counted.
before = status("VmRSS")
params = from_huggingface.load(sys.argv[2], dtype=sys.argv[3])
print((status("VmHWM") - before) / sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
"""


@pytest.fixture(scope="module")
def big(tmp_path_factory):
  """A checkpoint of 110 MB, a third of it the embedding."""
  config = T5Config(20000, 512, 8, 64, 2, 2, 1024)
  shapes = huggingface_names.parameter_shapes(config)
  params = jax.tree.map(lambda x: np.full(x.shape, 0.5, np.float32), shapes)
  path = tmp_path_factory.mktemp("big") / "t5"
  from_huggingface.save(path, params, config)
  return path


def peak(folder, dtype, kind="safetensors"):
  root = pathlib.Path(__file__).resolve().parents[2]
  command = [sys.executable, "-c", PEAK, root, folder, dtype, kind, FOLDER / "t5_1_1"]
  return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_host_holds_hardly_more_than_the_weights(big, dtype):
  """Everything that the process holds at its peak, mapped files included, over the weights that were asked for."""
  assert peak(big, dtype) < 1.3
