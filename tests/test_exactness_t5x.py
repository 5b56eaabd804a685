"""Greedy outputs, prompts, lengths and log-probabilities equal those of the real T5X.

T5X's checkpoints are loaded by `checkpoints.from_t5x`, decoded speculatively
through `loop.generate`, and compared with what T5X decoded from them (the T5X
fixtures, which state that tokens must be equal and scores within 5e-4).
"""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec import recipes
from specdec.adapters import flax_model
from specdec.interfaces import Params, Prompt
from specdec.networks.t5 import T5, T5Config
from tests import fakes
from tests import oracles

from_t5x = pytest.importorskip("specdec.checkpoints.from_t5x")
SHARED = pathlib.Path(__file__).parents[2] / "shared" / "t5x_fixtures"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the full set of T5X fixtures is not beside the repository")
PREFIX = 10  # BOS and prompts of up to 9 tokens.


@functools.cache
def model(name):
  """Module, parameters laid out for decoding, and `LanguageModel` of a fixture."""
  config = json.loads((SHARED / "manifest.json").read_text())["configs"][name]
  module = T5(T5Config(**config))
  variables = from_t5x.load(SHARED / "checkpoints" / name)
  return module, flax_model.prepare(module, variables), flax_model.t5_model(module)


@functools.cache
def reference(name):
  with np.load(SHARED / "reference" / f"{name}.npz") as arrays:
    return dict(arrays)


@functools.cache
def step(target, draft=None, eos=1):
  if draft is None:
    return recipes.autoregressive(model(target)[2], eos)
  return recipes.leviathan(model(target)[2], model(draft)[2], 3, eos)


def decode(arrays, target, draft=None, steps=None, prompt=None, eos=1, params=None):
  """Greedy decoding as T5X counts it: the output holds the prompt, and the buffer's length L caps both.

  Returns:
    decodes [B, L], zero after the end, and the result of `generate`.
  """
  tokens = arrays["encoder_input_tokens"]
  batch, length = arrays["decoder_input_tokens"].shape
  prefix = np.zeros((batch, PREFIX), np.int32)
  given = np.zeros(batch, np.int32)
  if prompt is not None:
    prefix[:] = prompt[:, :PREFIX]
    given = np.count_nonzero(prompt, axis=1).astype(np.int32)
  limit = length - given if steps is None else np.minimum(steps, length - given)
  params = params or Params(model(target)[1], None if draft is None else model(draft)[1])
  request = Prompt(jnp.asarray(tokens), jnp.asarray(tokens > 0), jnp.asarray(prefix), jnp.asarray(1 + given))
  out = loop.generate(
      step(target, draft, eos), jax.random.key(0), params, request, fakes.settings(batch, temperature=0.0), length,
      jnp.asarray(limit, jnp.int32),
  )  # fmt: skip
  decodes = np.zeros((batch, length), np.int32)
  for row, new in enumerate(oracles.outputs(out.tokens, out.lengths)):
    whole = (*prefix[row, 1 : 1 + given[row]], *new)
    decodes[row, : len(whole)] = whole
  return decodes, out


@pytest.mark.parametrize("target,draft", [("target", "draft"), ("tied", "draft"), ("draft", None)])
def test_greedy_tokens_and_log_probabilities(target, draft):
  arrays = reference(target)
  decodes, out = decode(arrays, target, draft)
  np.testing.assert_array_equal(decodes, arrays["greedy_t0/decodes"])
  log_prob = arrays["greedy_t0/token_logprobs"].sum(axis=1)
  np.testing.assert_allclose(out.statistics.log_prob, log_prob, atol=5e-4)
  np.testing.assert_allclose(out.statistics.log_prob, arrays["greedy_t0_raw_scores/scores"], atol=5e-4)
  np.testing.assert_array_equal(out.lengths, np.count_nonzero(arrays["greedy_t0/token_logprobs"], axis=1))
  for same in ("greedy_topk1", "greedy_default"):  # T5X decodes greedily by default.
    np.testing.assert_array_equal(decodes, arrays[f"{same}/decodes"])


def test_length_limits():
  arrays = reference("target")
  decodes, _ = decode(arrays, "target", "draft", steps=8)
  np.testing.assert_array_equal(decodes[:, :8], arrays["greedy_len8/decodes"])
  assert not decodes[:, 8:].any()
  decodes, _ = decode(arrays, "target", "draft", steps=10)
  np.testing.assert_array_equal(decodes, arrays["greedy_max_steps_10/decodes"])


@pytest.mark.parametrize("name,given,steps", [
    ("prompt", "prompt", None), ("prompt_max_steps_6", "prompt", 6), ("prompt_with_eos", "prompt_with_eos", None),
])  # fmt: skip
def test_prompts(name, given, steps):
  arrays = reference("target")
  prompt = arrays[f"{given}/decoder_input_tokens"]
  prompt = np.where(prompt == fakes.EOS, 0, prompt)  # T5X takes EOS out of a prompt; so must our caller.
  decodes, _ = decode(arrays, "target", "draft", steps, prompt)
  np.testing.assert_array_equal(decodes, arrays[f"{name}/decodes"])


def test_another_eos():
  arrays = reference("target")
  decodes, _ = decode(arrays, "target", "draft", eos=int(arrays["greedy_other_eos/eos_id"]))
  np.testing.assert_array_equal(decodes, arrays["greedy_other_eos/decodes"])
  assert (decodes == fakes.EOS).any()


def test_pad_is_an_ordinary_token():
  arrays = reference("target_pad_emission")
  variables = from_t5x.load(SHARED / "checkpoints" / "target")
  kernel = np.array(variables["decoder"]["logits_dense"]["kernel"])
  kernel[:, 0] = arrays["logits_dense_column_0"]
  variables["decoder"]["logits_dense"]["kernel"] = kernel
  params = Params(flax_model.prepare(model("target")[0], variables), model("draft")[1])
  decodes, out = decode(reference("target"), "target", "draft", params=params)
  np.testing.assert_array_equal(decodes, arrays["decodes"])
  assert any(0 in row for row in oracles.outputs(out.tokens, out.lengths))


def test_a_trained_pair():
  arrays = reference("trained")
  decodes, out = decode(arrays, "trained_target", "trained_draft")
  np.testing.assert_array_equal(decodes, arrays["target/greedy/decodes"])
  # The fixtures measured that the draft's argmax agrees at 97 % of the target's path.
  agreement = np.argmax(arrays["draft/path_logits"], -1) == np.argmax(arrays["target/path_logits"], -1)
  live = arrays["path_live"]
  assert agreement[live].mean() > 0.95
  statistics = out.statistics
  accepted, visited = int(statistics.accepted.sum()), int(statistics.visited.sum())
  assert 0.9 < accepted / visited < 1.0
