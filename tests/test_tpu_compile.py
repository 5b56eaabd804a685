"""The whole of `generate` compiles for one TPU v4 host, ahead of time and without a TPU.

Needs libtpu (the extra `tpu_plan`); nothing is executed. Weights are shapes
alone, so that T5-XXL costs nothing. What is shown: it compiles, it fits, the
caches are not copied for each step (temporaries stay small beside the weights).
"""

import os

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")
os.environ.setdefault("TPU_LOG_DIR", "disabled")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from specdec import loop  # noqa: E402
from specdec import models  # noqa: E402
from specdec import recipes  # noqa: E402
from specdec.adapters import flax_model  # noqa: E402
from specdec.interfaces import Params, Prompt  # noqa: E402
from specdec.networks import t5_decoder  # noqa: E402
from specdec.networks.t5 import T5, T5Config  # noqa: E402
from specdec.probability import transforms  # noqa: E402

pytest.importorskip("libtpu", reason="ahead-of-time TPU compilation needs libtpu (extra tpu_plan)")

CHIPS = 4
XXL = T5Config(
    32128, emb_dim=4096, num_heads=64, num_encoder_layers=24, num_decoder_layers=24, mlp_dim=10240, dtype="bfloat16"
)
SMALL = T5Config(
    32128, emb_dim=512, num_heads=6, num_encoder_layers=8, num_decoder_layers=8, mlp_dim=1024, dtype="bfloat16"
)


@pytest.fixture(scope="module")
def mesh():
  topology = topologies.get_topology_desc("v4:2x2x1", platform="tpu", chip_config_name="megacore")
  return Mesh(np.array(topology.devices), ("model",))


def placed(tree, mesh, shard):
  """Shapes with shardings: matrices split on their longest axis that the chips divide, all else replicated."""

  def one(leaf):
    spec = [None] * leaf.ndim
    if shard and leaf.ndim == 2:
      for axis in sorted(range(2), key=lambda i: -leaf.shape[i]):
        if leaf.shape[axis] % CHIPS == 0:
          spec[axis] = "model"
          break
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

  return jax.tree.map(one, tree)


def shapes(config, dtype):
  """`T5Params` of a model as shapes, in `dtype`."""
  module = T5(config)
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  raw = jax.eval_shape(module.init, jax.random.key(0), token, token)["params"]
  raw = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), raw)
  decoder = jax.eval_shape(lambda p: t5_decoder.lay_out(p, config), raw)
  return module, flax_model.T5Params(raw["encoder"], decoder)


def compiled(mesh, target, draft, gamma, encoder_length, dtype):
  """Compiles `generate`; returns its memory analysis and the bytes of the target's weights on a chip."""
  target_module, target_params = shapes(target, dtype)
  draft_module, draft_params = shapes(draft, dtype)
  step = recipes.leviathan(flax_model.t5_model(target_module), flax_model.t5_model(draft_module), gamma)
  target_params = placed(target_params, mesh, shard=True)
  params = Params(target_params, placed(draft_params, mesh, shard=False))
  prompt = jax.eval_shape(
      lambda: Prompt(
          jnp.zeros((1, encoder_length), jnp.int32),
          jnp.ones((1, encoder_length), bool),
          jnp.zeros((1, 1), jnp.int32),
          jnp.ones((1,), jnp.int32),
      )
  )
  others = (jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1)), prompt, transforms.sampling(1, 1.0))
  key, prompt, sampling = placed(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), others), mesh, False)
  program = loop.generate.lower(step, key, params, prompt, sampling, 128).compile()
  weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(target_params)) / CHIPS
  return program, weights


def test_shipped_sizes_compile_for_a_v4_host(mesh):
  program, _ = compiled(mesh, *models.SHIPPED["ende"].values(), 7, 64, jnp.float32)
  assert "while" in program.as_text()


@pytest.mark.heavy
def test_xxl_with_a_small_draft_compiles_and_fits_a_v4_host(mesh):
  program, weights = compiled(mesh, XXL, SMALL, 7, 512, jnp.bfloat16)
  memory = program.memory_analysis()
  assert memory.argument_size_in_bytes >= weights
  assert memory.argument_size_in_bytes + memory.temp_size_in_bytes < 30.75 * 2**30
  # A second copy of the target's weights, or caches copied a step, would show here.
  assert memory.temp_size_in_bytes < 0.25 * weights
