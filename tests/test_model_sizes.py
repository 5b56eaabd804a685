"""gin/models: the public sizes, and as many parameters as their papers say. Shapes only; no array is made."""

import functools
import math
import pathlib

import gin
import jax
import jax.numpy as jnp
import pytest

from specdec import main
from specdec.networks.t5 import T5, T5Config

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "gin" / "models"
MILLION, BILLION = 10**6, 10**9

# As printed, so rounded: T5 1.1 in the README of google-research/text-to-text-transfer-transformer (released
# checkpoints), T5 1.0 in Raffel et al. 2020, section 3.7, mT5 in Xue et al. 2021, table 2, ByT5 in Xue et al. 2022,
# table 1, Flan-T5 in Chung et al. 2022, section 2.
PUBLISHED = {
    "t5_1_1/small": 77 * MILLION,
    "t5_1_1/base": 250 * MILLION,
    "t5_1_1/large": 800 * MILLION,
    "t5_1_1/xl": 3 * BILLION,
    "t5_1_1/xxl": 11 * BILLION,
    "t5_1_0/small": 60 * MILLION,
    "t5_1_0/base": 220 * MILLION,
    "t5_1_0/large": 770 * MILLION,
    "t5_1_0/3B": 3 * BILLION,
    "t5_1_0/11B": 11 * BILLION,
    "mt5/small": 300 * MILLION,
    "mt5/base": 580 * MILLION,
    "mt5/large": 1.2 * BILLION,
    "mt5/xl": 3.7 * BILLION,
    "mt5/xxl": 13 * BILLION,
    "byt5/small": 300 * MILLION,
    "byt5/base": 582 * MILLION,
    "byt5/large": 1.23 * BILLION,
    "byt5/xl": 3.74 * BILLION,
    "byt5/xxl": 12.9 * BILLION,
    "flan/small": 80 * MILLION,
    "flan/base": 250 * MILLION,
    "flan/large": 780 * MILLION,
    "flan/xl": 3 * BILLION,
    "flan/xxl": 11 * BILLION,
}
ROUNDING = 0.06  # 2.85 billion are published as 3.

# Counted by T5X from its own gin files (params/public_t5.json of the T5X fixtures).
COUNTED_BY_T5X = {
    "t5_1_1/small": 76961152,
    "t5_1_1/base": 247577856,
    "t5_1_1/large": 783150080,
    "t5_1_1/xl": 2849757184,
    "t5_1_1/xxl": 11135332352,
    "t5_1_0/small": 60506624,
}


def config_of(name: str) -> T5Config:
  """The sizes that the gin file binds."""
  path = FOLDER / f"{name}.gin"
  scope = {"3B": "t5_3B", "11B": "t5_11B"}.get(path.stem, path.stem)
  try:
    main.parse_gin([str(path)], [])
    fields = ("vocab_size", "emb_dim", "num_heads", "head_dim", "num_encoder_layers", "num_decoder_layers", "mlp_dim")
    fields += ("mlp_activations", "logits_via_embedding")
    return T5Config(**{field: gin.query_parameter(f"{scope}/t5.T5Config.{field}") for field in fields})
  finally:
    gin.clear_config(clear_constants=True)


def closed_form(config: T5Config) -> int:
  """Parameters of a T5, added up by hand."""
  embedding, heads = config.emb_dim, config.num_heads * config.head_dim
  attention = 4 * embedding * heads
  mlp = (len(config.mlp_activations) + 1) * embedding * config.mlp_dim
  encoder = config.num_encoder_layers * (attention + mlp + 2 * embedding)
  decoder = config.num_decoder_layers * (2 * attention + mlp + 3 * embedding)
  tables = 2 * config.num_heads * config.relative_attention_num_buckets
  outputs = 1 if config.logits_via_embedding else 2
  return encoder + decoder + tables + 2 * embedding + outputs * config.vocab_size * embedding


@functools.cache
def parameters(config: T5Config) -> int:
  """Of the network itself; Flan-T5 has the sizes of T5 1.1."""
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  shapes = jax.eval_shape(T5(config).init, jax.random.key(0), token, token)["params"]
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def test_every_public_size_is_here():
  found = {path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("*/*.gin")}
  assert found >= PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts(name):
  config = config_of(name)
  count = parameters(config)
  assert count == closed_form(config)
  assert abs(count / PUBLISHED[name] - 1) < ROUNDING
  assert count == COUNTED_BY_T5X.get(name, count)
