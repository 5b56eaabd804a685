"""`--mode=convert`: T5X, ours and Hugging Face, both directions."""

import json
import pathlib

import jax
import numpy as np
import pytest

from specdec import models
from specdec.checkpoints import formats
from specdec.checkpoints import from_huggingface
from specdec.checkpoints import from_orbax
from specdec.checkpoints import from_t5x
from specdec.checkpoints import names
from specdec.modes import convert
from specdec.networks.t5 import T5, T5Config
from tests.modes import tiny as lib

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
T5X, HUGGING_FACE = FIXTURES / "t5x" / "checkpoint_1000000", FIXTURES / "huggingface"


def assert_same(a, b):
  a, b = names.flatten(a), names.flatten(b)
  assert a.keys() == b.keys()
  for name, array in a.items():
    np.testing.assert_array_equal(array, b[name], err_msg=name)


def test_from_t5x_to_both_and_round(tmp_path):
  expected = from_t5x.load(T5X)
  config = convert.convert(str(T5X), str(tmp_path / "ours"), "specdec")
  assert (config.vocab_size, config.emb_dim, config.num_heads, config.head_dim, config.mlp_dim) == (512, 32, 2, 16, 64)
  assert_same(from_orbax.load(tmp_path / "ours"), expected)
  convert.convert(str(T5X), str(tmp_path / "hf"), "huggingface")
  assert_same(from_huggingface.load(tmp_path / "hf"), expected)
  assert convert.convert(str(tmp_path / "ours"), str(tmp_path / "hf2"), "huggingface") == config
  assert convert.convert(str(tmp_path / "hf2"), str(tmp_path / "ours2"), "specdec") == config
  assert_same(from_orbax.load(tmp_path / "ours2"), expected)
  assert formats.format_of(tmp_path / "ours2") == "specdec" and formats.format_of(tmp_path / "hf2") == "huggingface"


@pytest.mark.parametrize("name", ["t5_1_0", "t5_1_1", "mt5"])
def test_hugging_face_to_ours_and_back(name, tmp_path):
  config = convert.convert(str(HUGGING_FACE / name), str(tmp_path / "ours"), "specdec")
  convert.convert(str(tmp_path / "ours"), str(tmp_path / "back"), "huggingface")
  params, again = from_huggingface.load_with_config(tmp_path / "back")
  assert again == config
  assert_same(params, from_huggingface.load(HUGGING_FACE / name))


def test_dtype_and_module(tmp_path):
  # Activations leave no trace in shapes: a module tells.
  module = T5(T5Config(512, 32, 2, 16, 1, 1, 64, ("silu", "linear")))
  convert.convert(str(T5X), str(tmp_path / "hf"), "huggingface", module, "bfloat16")
  written = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert written["feed_forward_proj"] == "gated-silu" and written["torch_dtype"] == "bfloat16"
  assert {leaf.dtype.name for leaf in jax.tree.leaves(from_huggingface.load(tmp_path / "hf"))} == {"bfloat16"}
  with pytest.raises(ValueError, match="expected mlp_activations .'gelu', 'linear'. as the module has"):
    gelu = T5(T5Config(512, 32, 2, 16, 1, 1, 64))
    convert.convert(str(tmp_path / "hf"), str(tmp_path / "new"), "specdec", gelu)
  with pytest.raises(ValueError, match="parameters do not fit the model"):
    convert.convert(str(T5X), str(tmp_path / "new"), "specdec", T5(T5Config(512, 32, 2, 16, 2, 1, 64)))
  with pytest.raises(ValueError, match="to: expected one of specdec, huggingface, found 't5x'"):
    convert.convert(str(T5X), str(tmp_path / "new"), "t5x")
  assert not (tmp_path / "new").exists()


def test_through_main(tmp_path):
  arguments = ["--mode=convert", "--gin_file=gin/runs/convert.gin", "--gin.TO='huggingface'"]
  arguments += [f"--gin.CHECKPOINT='{T5X}'", f"--gin.PATH='{tmp_path}/out'"]
  assert lib.call_main(*arguments) is None
  assert_same(from_huggingface.load(tmp_path / "out"), from_t5x.load(T5X))
  assert lib.call_main(*arguments).startswith(f"specdec: {tmp_path}/out: expected no such file or folder")
  assert lib.call_main(*arguments, "--gin.convert.convert.overwrite=True") is None


def test_a_converted_model_decodes(tiny, tmp_path):
  """`load_model` takes any of the formats."""
  config = lib.fakes_pair().module.config
  from_huggingface.save(tmp_path / "hf", jax.tree.map(np.asarray, lib.fakes_pair().variables), config)
  model = models.load_model(lib.fakes_pair().module, str(tmp_path / "hf"), tiny.target.vocabulary)
  jax.tree.map(np.testing.assert_array_equal, model.params, tiny.target.params)
  with pytest.raises(ValueError, match="it has 65 pieces, and the model only 64 logits"):
    models.load_model(lib.fakes_pair().module, str(tmp_path / "hf"), tiny.target.vocabulary, vocab_size=65)
