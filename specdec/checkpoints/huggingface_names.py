"""Names and configuration of Hugging Face's T5, and ours.

A `torch.nn.Linear` keeps its weight as [out, in], so kernels are transposed.
Nothing here reads a file.

Dimensions: E embedding, H heads, D head size, M mlp, V vocabulary.
"""

from collections.abc import Collection, Mapping
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.checkpoints import names
from specdec.networks.t5 import T5, T5Config

EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"
# Copies of the embedding that many files hold, and a table that no T5 uses.
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)

# `feed_forward_proj` of config.json; Hugging Face reads 'gated-gelu' as the tanh approximation, which is T5X's gelu.
ACTIVATIONS = {
    "relu": ("relu",),
    "gelu_new": ("gelu",),
    "silu": ("silu",),
    "gated-gelu": ("gelu", "linear"),
    "gated-silu": ("silu", "linear"),
    "gated-relu": ("relu", "linear"),
}
_EPSILON = 1e-6  # `networks.layers.rms_norm` knows no other.


class Place(NamedTuple):
  """Where Hugging Face keeps a parameter."""

  name: str
  transposed: bool


def places(config: T5Config) -> dict[str, Place]:
  """Of each of our parameters its place there.

  Example:
    >>> places(T5Config(8, num_encoder_layers=1, num_decoder_layers=1))["decoder/layers_0/mlp/wo/kernel"]
    Place(name='decoder.block.0.layer.2.DenseReluDense.wo.weight', transposed=True)
  """
  branches = len(config.mlp_activations)
  wi = ["wi"] if branches == 1 else [f"wi_{i}" for i in range(branches)]
  found = {"token_embedder/embedding": Place(EMBEDDING, False)}
  if not config.logits_via_embedding:
    found["decoder/logits_dense/kernel"] = Place(HEAD, True)
  parts = {  # Ours: theirs, and the name of the norm before it.
      "encoder": (("attention", "SelfAttention", "attention"), ("mlp", "DenseReluDense", "mlp")),
      "decoder": (
          ("self_attention", "SelfAttention", "self_attention"),
          ("encoder_decoder_attention", "EncDecAttention", "cross_attention"),
          ("mlp", "DenseReluDense", "mlp"),
      ),
  }
  for stack, number in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
    table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found[f"{stack}/relpos_bias/rel_embedding"] = Place(table, True)
    found[f"{stack}/{stack}_norm/scale"] = Place(f"{stack}.final_layer_norm.weight", False)
    for layer in range(number):
      for i, (ours, theirs, norm) in enumerate(parts[stack]):
        our, their = f"{stack}/layers_{layer}", f"{stack}.block.{layer}.layer.{i}"
        found[f"{our}/pre_{norm}_layer_norm/scale"] = Place(f"{their}.layer_norm.weight", False)
        kernels = dict(zip((*wi, "wo"), (*wi, "wo"))) if ours == "mlp" else dict(query="q", key="k", value="v", out="o")
        for kernel, letter in kernels.items():
          found[f"{our}/{ours}/{kernel}/kernel"] = Place(f"{their}.{theirs}.{letter}.weight", True)
  return found


def parameter_shapes(config: T5Config) -> dict[str, Any]:
  """Names and shapes of our network's parameters, nested."""
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  return jax.eval_shape(T5(config).init, jax.random.key(0), token, token)["params"]


def read_config(data: Mapping[str, Any], source: str) -> T5Config:
  """Our configuration from the content of config.json.

  The output is tied where Hugging Face scales it: `scale_decoder_outputs` says
  so in files of transformers 5, `tie_word_embeddings` in older ones; mT5 never
  does.

  Raises:
    ValueError: it is no T5 or mT5, a value is missing, or the network has a part
      that ours lacks; the message names all of them.
  """
  faults = []
  if data.get("model_type") not in ("t5", "mt5"):
    faults.append(f"model_type: expected 't5' or 'mt5', found {data.get('model_type')!r}")
  sizes = {}
  for ours, theirs in dict(
      vocab_size="vocab_size", emb_dim="d_model", num_heads="num_heads", head_dim="d_kv", mlp_dim="d_ff",
      num_encoder_layers="num_layers",
  ).items():  # fmt: skip
    sizes[ours] = data.get(theirs)
    if not isinstance(sizes[ours], int):
      faults.append(f"{theirs}: expected a whole number, found {sizes[ours]!r}")
  sizes["num_decoder_layers"] = data.get("num_decoder_layers") or sizes["num_encoder_layers"]
  activation = data.get("feed_forward_proj", "gated-gelu" if data.get("model_type") == "mt5" else "relu")
  if activation not in ACTIVATIONS:
    faults.append(f"feed_forward_proj: expected one of {', '.join(ACTIVATIONS)}, found {activation!r}")
  if abs(data.get("layer_norm_epsilon", _EPSILON) - _EPSILON) > 1e-9:
    faults.append(f"layer_norm_epsilon: expected {_EPSILON}, found {data['layer_norm_epsilon']!r}")
  if faults:
    raise ValueError("\n  ".join([f"{source}: not a model that networks.t5 can run.", *faults]))
  scaled = data.get("scale_decoder_outputs", data["model_type"] == "t5" and data.get("tie_word_embeddings") is not False)
  return T5Config(
      **sizes,
      mlp_activations=ACTIVATIONS[activation],
      logits_via_embedding=bool(scaled),
      dropout_rate=data.get("dropout_rate", 0.1),
      relative_attention_num_buckets=data.get("relative_attention_num_buckets", 32),
      relative_attention_max_distance=data.get("relative_attention_max_distance", 128),
  )


def write_config(config: T5Config, dtype: str) -> dict[str, Any]:
  """The content of config.json; older and newer transformers read it alike.

  Raises:
    ValueError: Hugging Face has no such activations.
  """
  spelled = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
  if config.mlp_activations not in spelled:
    raise ValueError(f"mlp_activations: expected one of {sorted(spelled)}, found {config.mlp_activations}.")
  return {
      "architectures": ["T5ForConditionalGeneration"],
      "model_type": "t5",
      "vocab_size": config.vocab_size,
      "d_model": config.emb_dim,
      "d_kv": config.head_dim,
      "d_ff": config.mlp_dim,
      "num_heads": config.num_heads,
      "num_layers": config.num_encoder_layers,
      "num_decoder_layers": config.num_decoder_layers,
      "feed_forward_proj": spelled[config.mlp_activations],
      "tie_word_embeddings": config.logits_via_embedding,
      "scale_decoder_outputs": config.logits_via_embedding,
      "dropout_rate": config.dropout_rate,
      "layer_norm_epsilon": _EPSILON,
      "relative_attention_num_buckets": config.relative_attention_num_buckets,
      "relative_attention_max_distance": config.relative_attention_max_distance,
      "is_encoder_decoder": True,
      "pad_token_id": 0,
      "eos_token_id": 1,
      "decoder_start_token_id": 0,
      "torch_dtype": dtype,
  }


def guess_config(shapes: Mapping[str, tuple[int, ...]], source: str) -> T5Config:
  """The configuration of a folder without config.json, from the shapes of its arrays.

  Activations leave no trace in shapes: one `wi` is T5 1.0's relu, two are T5
  1.1's gated gelu.
  """
  layers = lambda stack: 1 + max([int(m[1]) for n in shapes if (m := re.match(rf"{stack}\.block\.(\d+)\.", n))], default=-1)
  rough = T5Config(
      vocab_size=1,
      num_encoder_layers=layers("encoder"),
      num_decoder_layers=max(1, layers("decoder")),
      mlp_activations=("gelu", "linear") if any(".wi_0." in name for name in shapes) else ("relu",),
      logits_via_embedding=HEAD not in shapes,
  )
  described = {
      ours: jax.ShapeDtypeStruct(shapes[place.name][::-1] if place.transposed else shapes[place.name], jnp.float32)
      for ours, place in places(rough).items()
      if place.name in shapes
  }
  return config_of(names.unflatten(described), source)


def config_of(params: Mapping[str, Any], source: str = "parameters", **known: Any) -> T5Config:
  """The sizes of parameters under our names, from their shapes.

  Args:
    params: nested dictionaries of arrays or their descriptions.
    source: for the message.
    **known: fields of `T5Config` that shapes do not tell: `mlp_activations` (the
      guess is ('relu',) for one branch, ('gelu', 'linear') for two), dtype, the
      largest distance.

  Raises:
    ValueError: parameters that tell a size are missing.

  Example:
    >>> config = T5Config(8, 4, 2, 3, 1, 2, 5, ("relu",), True)
    >>> config_of(parameter_shapes(config)) == config
    True
  """
  flat = names.flatten(params)
  shape = lambda name: tuple(flat[name].shape)
  layers = lambda stack: 1 + max([int(m[1]) for n in flat if (m := re.match(rf"{stack}/layers_(\d+)/", n))], default=-1)
  branches = len([name for name in flat if re.fullmatch(r"decoder/layers_0/mlp/wi(_\d+)?/kernel", name)])
  try:
    vocab_size, emb_dim = shape("token_embedder/embedding")
    num_heads, buckets = shape("decoder/relpos_bias/rel_embedding")
    _, joined = shape("decoder/layers_0/self_attention/query/kernel")
    mlp_dim, _ = shape("decoder/layers_0/mlp/wo/kernel")
  except KeyError as error:
    raise ValueError(f"{source}: expected the parameters of a T5, found none called {error.args[0]}.") from error
  return T5Config(**{
      **dict(vocab_size=vocab_size, emb_dim=emb_dim, num_heads=num_heads, head_dim=joined // num_heads),
      **dict(num_encoder_layers=layers("encoder"), num_decoder_layers=layers("decoder"), mlp_dim=mlp_dim),
      "mlp_activations": ("relu",) if branches == 1 else ("gelu", *["linear"] * (branches - 1)),
      "logits_via_embedding": "decoder/logits_dense/kernel" not in flat,
      "relative_attention_num_buckets": buckets,
      **known,
  })


def check(
    shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, Place], config: T5Config, source: str
) -> Collection[str]:
  """Compares the arrays of a folder with those that `config` needs, under their own names.

  Returns:
    The names of copies of the embedding among them.

  Raises:
    ValueError: one is missing, surplus or of another shape; the message names all.
  """
  ours = names.flatten(parameter_shapes(config))
  needed = {}
  for name, place in wanted.items():
    shape = tuple(ours[name].shape)
    needed[place.name] = jax.ShapeDtypeStruct(shape[::-1] if place.transposed else shape, jnp.float32)
  copies = [name for name in (*COPIES, *(() if HEAD in needed else (HEAD,))) if name in shapes]
  expected = needed | {name: needed[EMBEDDING] for name in copies}
  found = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items() if name not in UNUSED}
  names.check(found, expected, source)
  return copies
