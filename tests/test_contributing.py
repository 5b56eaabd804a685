"""The skeletons of CONTRIBUTING.md run, and keep the target's law: greedy output equals plain decoding."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec import recipes
from specdec.acceptance.greedy import chain_verdict
from specdec.acceptance.rejection import rejection
from specdec.adapters import flax_model
from specdec.drafters.model import extend, model_drafter
from specdec.interfaces import Draft, Drafter, Params, Prompt, Transform
from specdec.networks.t5 import T5, T5Config
from specdec.probability import sampling as draw
from specdec.probability import transforms
from specdec.step import speculative_step
from specdec.trees import topology

TEXT = (pathlib.Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMES = dict(jax=jax, extend=extend, Transform=Transform, jnp=jnp, Draft=Draft, Drafter=Drafter, topology=topology, draw=draw, chain_verdict=chain_verdict)


@pytest.fixture(scope="module")
def skeletons():
  namespace = dict(NAMES)
  for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.S):
    exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
  return namespace


@pytest.fixture(scope="module")
def model():
  module = T5(T5Config(24, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=16))
  tokens = jnp.ones((1, 3), jnp.int32)
  params = module.init(jax.random.key(0), tokens, tokens)["params"]
  return flax_model.t5_model(module), flax_model.prepare(module, params)


@pytest.mark.parametrize("which", ["drafter", "bigram", "rule", "tree"])
def test_skeleton_decodes_as_the_plain_decoder(skeletons, model, which):
  language_model, params = model
  transform = recipes.sampling_transform()
  drafter, rule = model_drafter(language_model, 3, transform), rejection
  draft_params = params
  if which == "drafter":
    drafter = skeletons["repeat_last"](3)
  elif which == "bigram":
    drafter = skeletons["dense_bigram"](3, transform)
    draft_params = jax.nn.log_softmax(jax.random.normal(jax.random.key(1), (24, 24)))
  else:
    rule = skeletons["accept_nothing"]
  step = speculative_step(language_model, drafter, rule, transform, recipes.EOS_ID)
  if which == "tree":
    step = recipes.tree(language_model, language_model, skeletons["comb"](3))
  tokens = jnp.asarray([[5, 9, 2, 1], [7, 3, 1, 0]], jnp.int32)
  prompt = Prompt(tokens, tokens > 0, jnp.zeros((2, 1), jnp.int32), jnp.ones((2,), jnp.int32))
  settings = transforms.sampling(2, 0.0)
  run = lambda s: loop.generate(s, jax.random.key(0), Params(params, draft_params), prompt, settings, 12)
  np.testing.assert_array_equal(run(step).tokens, run(recipes.autoregressive(language_model)).tokens)
