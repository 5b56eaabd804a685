"""Against `transformers` itself: both directions, PyTorch files, and sampling-free generation. Needs the extra `hf`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.checkpoints import from_huggingface
from specdec.networks.t5 import T5
from tests.checkpoints import test_from_huggingface as plain

torch = pytest.importorskip("torch", reason="needs the extra hf")
transformers = pytest.importorskip("transformers", reason="needs the extra hf")

SIZES = dict(vocab_size=40, d_model=12, d_kv=4, d_ff=20, num_heads=3, num_layers=2, num_decoder_layers=1)
KINDS = {
    "t5_1_0": ("T5ForConditionalGeneration", dict(feed_forward_proj="relu")),
    "t5_1_1": ("T5ForConditionalGeneration", dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "silu": ("T5ForConditionalGeneration", dict(feed_forward_proj="gated-silu", tie_word_embeddings=False)),
    "mt5": ("MT5ForConditionalGeneration", dict(tie_word_embeddings=False)),
}


def their_model(kind):
  name, changes = KINDS[kind]
  cls = getattr(transformers, name)
  torch.manual_seed(len(kind))
  model = cls(cls.config_class(**SIZES | changes)).eval()
  if "tie_word_embeddings" in changes:
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
  with torch.no_grad():
    for key, value in model.named_parameters():
      value.copy_((1 if "layer_norm" in key else 0) + 0.4 * torch.randn(value.shape))
  return model


def tokens():
  generator = np.random.default_rng(0)
  encoder, decoder = generator.integers(2, 40, (3, 140)), generator.integers(2, 40, (3, 135))
  for row, length in enumerate((140, 9, 2)):
    encoder[row, length:] = 0
  decoder[:, 0] = 0
  return encoder, decoder


def their_logits(model, encoder, decoder):
  encoder = torch.tensor(encoder)
  with torch.no_grad():
    out = model(input_ids=encoder, attention_mask=(encoder > 0).long(), decoder_input_ids=torch.tensor(decoder))
  return out.logits.numpy()


def our_logits(params, config, encoder, decoder):
  with jax.default_matmul_precision("highest"):
    return np.asarray(T5(config).apply({"params": params}, jnp.asarray(encoder), jnp.asarray(decoder)))


def assert_close(ours, theirs):
  """Within 1e-4 of the largest logit, past the last relative position bucket too."""
  np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["safetensors", "shards", "bin", "old bin", "bin shards"])
def test_their_checkpoints(kind, stored, tmp_path):
  model = their_model(kind)
  model.save_pretrained(tmp_path, max_shard_size="6KB" if stored == "shards" else "1GB")
  if "bin" in stored:
    (tmp_path / "model.safetensors").unlink()
    weights = dict(model.state_dict())
    if stored == "bin shards":
      names = sorted(weights)
      parts = {f"pytorch_model-{i}.bin": names[i::2] for i in range(2)}
      for file, inside in parts.items():
        torch.save({name: weights[name] for name in inside}, tmp_path / file)
      index = {"weight_map": {name: file for file, inside in parts.items() for name in inside}}
      from_huggingface._write_json(tmp_path / "pytorch_model.bin.index.json", index)
    else:
      torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=stored == "bin")
  params, config = from_huggingface.load_with_config(tmp_path)
  encoder, decoder = tokens()
  assert_close(our_logits(params, config, encoder, decoder), their_logits(model, encoder, decoder))


@pytest.mark.parametrize("name", plain.MODELS)
def test_they_read_what_we_write(name, tmp_path):
  params, config = from_huggingface.load_with_config(plain.FOLDER / name)
  from_huggingface.save(tmp_path / "out", params, config, shard_bytes=6000)
  model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
  encoder, decoder = tokens()
  assert_close(our_logits(params, config, encoder, decoder), their_logits(model, encoder, decoder))


def test_bfloat16_and_half_precision_files(tmp_path):
  for dtype in ("bfloat16", "float16"):
    model = their_model("t5_1_1").to(getattr(torch, dtype))
    folder = tmp_path / dtype
    model.save_pretrained(folder)
    torch.save(dict(model.state_dict()), folder / "pytorch_model.bin")
    from_safetensors = from_huggingface.load(folder)
    (folder / "model.safetensors").unlink()
    from_bin = from_huggingface.load(folder)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(from_bin)} == {dtype}
    jax.tree.map(np.testing.assert_array_equal, from_bin, from_safetensors)


class Payload:
  """What a hostile pickle would do."""

  def __reduce__(self):
    import os

    return os.mkdir, ("harmed",)


def test_code_in_a_pytorch_file_is_not_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  torch.save({"shared.weight": Payload()}, tmp_path / "pytorch_model.bin")
  with pytest.raises(ValueError, match="expected a PyTorch file of weights alone"):
    from_huggingface.load(tmp_path)
  assert not (tmp_path / "harmed").exists()
  (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04 and no more")
  with pytest.raises(ValueError, match="expected a PyTorch file of weights alone"):
    from_huggingface.load(tmp_path)


def test_the_host_holds_hardly_more_than_the_weights(tmp_path):
  import safetensors.torch

  from specdec.checkpoints import huggingface_names
  from specdec.networks.t5 import T5Config

  config = T5Config(20000, 512, 8, 64, 2, 2, 1024)
  params = jax.tree.map(lambda x: np.full(x.shape, 0.5, np.float32), huggingface_names.parameter_shapes(config))
  from_huggingface.save(tmp_path / "t5", params, config)
  weights = safetensors.torch.load_file(tmp_path / "t5" / "model.safetensors")
  torch.save(weights, tmp_path / "t5" / "pytorch_model.bin")
  (tmp_path / "t5" / "model.safetensors").unlink()
  assert plain.peak(tmp_path / "t5", "float32", "bin") < 1.3
