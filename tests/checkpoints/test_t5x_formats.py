"""Each way in which T5X stores parameters, from a small copy that travels with the tests: logits, scores, tokens, beams."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from specdec import beam_search
from specdec import loop
from specdec import recipes
from specdec.adapters import flax_model
from specdec.checkpoints import formats
from specdec.checkpoints import from_t5x
from specdec.checkpoints import huggingface_names
from specdec.checkpoints import names
from specdec.interfaces import Params, Prompt
from specdec.networks.t5 import T5, T5Config
from tests import fakes

FOLDER = pathlib.Path(__file__).parents[1] / "fixtures" / "t5x"
# Checkpoint: its model in manifest.json, and its numbers.
CHECKPOINTS = {
    "checkpoint_1000000": ("draft", "reference"),
    "formats/draft_gcs_specs": ("draft", "reference"),
    "formats/draft_inline_norms": ("draft", "reference"),
    "formats/draft_orbax": ("draft", "reference"),
    "formats/tied": ("tied", "tied"),
    "formats/target_scan": ("target", "target"),
    "formats/trained_draft": ("trained_draft", "trained"),
}


@functools.cache
def config(model):
  return T5Config(**json.loads((FOLDER / "manifest.json").read_text())["configs"][model])


@functools.cache
def reference(name):
  with np.load(FOLDER / f"{name}.npz") as arrays:
    return {key.removeprefix("draft/"): array for key, array in arrays.items()}


@functools.partial(jax.jit, static_argnums=0)
def run(config, params, encoder, decoder):
  model, variables = T5(config), {"params": params}
  with jax.default_matmul_precision("highest"):
    return model.apply(variables, encoder, method="encode"), model.apply(variables, encoder, decoder)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_numbers_are_t5x_s(name):
  model, numbers = CHECKPOINTS[name]
  data = reference(numbers)
  expected = huggingface_names.parameter_shapes(config(model))
  params = formats.load(FOLDER / name, expected=expected)
  encoded, logits = run(config(model), params, data["encoder_input_tokens"], data["decoder_input_tokens"])
  if "logits" in data:
    seen, live = data["encoder_input_tokens"] > 0, data["decoder_target_tokens"] > 0
    np.testing.assert_allclose(encoded[seen], data["encoded"][seen], atol=2e-5)
    np.testing.assert_allclose(logits[live], data["logits"][live], atol=1e-4)
  log_p = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), data["decoder_target_tokens"][..., None], -1)[..., 0]
  log_p = log_p * data["decoder_loss_weights"]
  np.testing.assert_allclose(log_p.sum(-1), data["score_batch"], atol=5e-3)
  if "score_batch_tokens" in data:
    np.testing.assert_allclose(log_p, data["score_batch_tokens"] * data["decoder_loss_weights"], atol=1e-4)


def test_bfloat16_is_the_float32_one_rounded():
  rounded = names.flatten(from_t5x.load(FOLDER / "formats" / "draft_bfloat16"))
  plain = names.flatten(from_t5x.load(FOLDER / "checkpoint_1000000"))
  for name, array in plain.items():
    np.testing.assert_array_equal(rounded[name], array.astype(ml_dtypes.bfloat16), err_msg=name)


def test_configurations_are_told_by_shapes():
  for name, (model, _) in CHECKPOINTS.items():
    params = from_t5x.load(FOLDER / name)
    known = dict(dropout_rate=config(model).dropout_rate)
    assert huggingface_names.config_of(params, name, **known) == config(model)


def prepared(name):
  model, numbers = CHECKPOINTS[name]
  module, data = T5(config(model)), reference(numbers)
  tokens = jnp.asarray(data["encoder_input_tokens"])
  batch = tokens.shape[0]
  prompt = Prompt(tokens, tokens > 0, jnp.zeros((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32))
  return flax_model.t5_model(module), flax_model.prepare(module, from_t5x.load(FOLDER / name)), prompt, data


def test_greedy_tokens_of_a_checkpoint_of_t5x_train():
  model, params, prompt, data = prepared("formats/trained_draft")
  out = loop.generate(
      recipes.autoregressive(model), jax.random.key(0), Params(params), prompt, fakes.settings(16, temperature=0.0), 24
  )
  np.testing.assert_array_equal(out.tokens, data["greedy/decodes"])
  np.testing.assert_allclose(out.statistics.log_prob, data["greedy/scores"], atol=5e-4)


@pytest.mark.parametrize("name", ["checkpoint_1000000", "formats/tied"])
def test_beams_are_t5x_s(name):
  model, params, prompt, data = prepared(name)
  batch, beams, length = data["beam4/decodes"].shape
  out = beam_search.search(recipes.beam_search(model, beams), params, prompt, fakes.settings(batch), length)
  np.testing.assert_array_equal(out.tokens, data["beam4/decodes"])
  np.testing.assert_allclose(out.scores, data["beam4/scores"], atol=5e-4)
