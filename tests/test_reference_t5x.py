"""The rest of T5X's numbers: beams, sampled sequences and their scores, masks along a path, bfloat16.

Needs the full set of T5X fixtures; `tests/checkpoints/test_t5x_formats.py` tests a part of it everywhere.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import beam_search
from specdec import recipes
from specdec.interfaces import Prompt
from specdec.networks.t5 import T5
from specdec.probability import transforms
from tests import fakes
from tests import test_exactness_t5x as t5x

pytestmark = t5x.pytestmark
reference = t5x.reference


@functools.cache
def method(name, beams):
  return recipes.beam_search(t5x.model(name)[2], beams)


def beams_of(name, beams, alpha=0.6, prompt=None):
  """As T5X counts: [B, n, L] with the prompt inside, and scores."""
  arrays = reference(name)
  tokens = arrays["encoder_input_tokens"]
  batch, length = arrays["decoder_input_tokens"].shape
  prefix, given = np.zeros((batch, t5x.PREFIX), np.int32), np.zeros(batch, np.int32)
  if prompt is not None:
    prefix[:] = prompt[:, : t5x.PREFIX]
    given = np.count_nonzero(prompt, axis=1).astype(np.int32)
  request = Prompt(jnp.asarray(tokens), jnp.asarray(tokens > 0), jnp.asarray(prefix), jnp.asarray(1 + given))
  out = beam_search.search(
      method(name, beams), t5x.model(name)[1], request, fakes.settings(batch), length, jnp.float32(alpha),
      jnp.asarray(length - given, jnp.int32),
  )  # fmt: skip
  out = jax.device_get(out)
  decodes = np.zeros((batch, beams, length), np.int32)
  for row, place in np.ndindex(batch, beams):
    if out.lengths[row, place]:
      whole = [*prefix[row, 1 : 1 + given[row]], *out.tokens[row, place, : out.lengths[row, place]]]
      decodes[row, place, : len(whole)] = whole
  return decodes, out.scores


@pytest.mark.parametrize("name,key,beams,alpha", [
    ("target", "beam4", 4, 0.6), ("target", "beam4_alpha0", 4, 0.0), ("target", "beam4_prompt", 4, 0.6),
    ("target", "beam1", 1, 0.6), ("draft", "beam4", 4, 0.6), ("tied", "beam4", 4, 0.6),
])  # fmt: skip
def test_beams(name, key, beams, alpha):
  """Where beam 1 differs from greedy decoding is in `test_beam_search`: on these four rows the two agree."""
  arrays = reference(name)
  prompt = arrays["prompt/decoder_input_tokens"] if key == "beam4_prompt" else None
  decodes, scores = beams_of(name, beams, alpha, prompt)
  np.testing.assert_array_equal(decodes, arrays[f"{key}/decodes"])
  np.testing.assert_allclose(scores, arrays[f"{key}/scores"], atol=5e-4)


@functools.partial(jax.jit, static_argnums=0)
def apply(config, params, encoder, decoder):
  with jax.default_matmul_precision("highest"):
    return T5(config).apply({"params": params}, encoder, decoder)


@functools.cache
def weights(name):
  return t5x.from_t5x.load(t5x.SHARED / "checkpoints" / name)


def logits_along(name, decodes, config=None):
  """[B, n, L] or [B, L] outputs -> the logits before each token."""
  encoder = reference("target" if config else name)["encoder_input_tokens"]
  flat = decodes.reshape(-1, decodes.shape[-1])
  encoder = np.repeat(encoder, len(flat) // len(encoder), axis=0)
  fed = np.pad(flat, ((0, 0), (1, 0)))[:, :-1]
  out = apply(config or t5x.model(name)[0].config, weights(name), encoder, fed)
  return np.asarray(out).reshape(*decodes.shape, -1)


def live(decodes, eos=fakes.EOS):
  """Tokens up to the first EOS."""
  ends = np.cumsum(decodes == eos, axis=-1)
  return (ends == 0) | ((ends == 1) & (decodes == eos))


@pytest.mark.parametrize("key,setting,raw", [
    ("sample_t0.7_k10", dict(temperature=0.7, top_k=10), False),
    ("sample_t0.7_p0.9", dict(temperature=0.7, top_p=0.9), False),
    ("sample_t0.7_k10_raw_scores", dict(temperature=0.7, top_k=10), True),
])  # fmt: skip
def test_sequences_that_t5x_drew_have_its_scores_under_our_law(key, setting, raw):
  arrays = reference("target")
  decodes = arrays[f"{key}/decodes"]
  logits = logits_along("target", decodes).reshape(len(decodes), -1, 512)
  law = np.asarray(transforms.to_law(jnp.asarray(logits), transforms.sampling(len(decodes), **setting)))
  tokens = decodes.reshape(len(decodes), -1, 1)
  chosen = np.take_along_axis(law, tokens, -1).reshape(decodes.shape)
  plain = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), tokens, -1).reshape(decodes.shape)
  used = live(decodes)
  assert np.isfinite(chosen[used]).all()  # Our law allows every token that T5X drew.
  scores = np.where(used, plain if raw else chosen, 0).sum(-1)
  np.testing.assert_allclose(scores, arrays[f"{key}/scores"], atol=5e-4)


@pytest.mark.parametrize("key,setting", [
    ("t0.7_k10", dict(temperature=0.7, top_k=10)), ("t0.7_p0.9", dict(temperature=0.7, top_p=0.9)),
])  # fmt: skip
def test_what_is_kept_along_the_greedy_path(key, setting):
  arrays = reference("target")
  decodes, used = arrays["greedy_t0/decodes"], arrays["greedy_path/live"]
  logits = logits_along("target", decodes)
  law = np.asarray(transforms.to_law(jnp.asarray(logits), transforms.sampling(len(decodes), **setting)))
  keep = np.unpackbits(arrays[f"greedy_path_{key}/keep"], axis=-1)[..., : law.shape[-1]].astype(bool)
  np.testing.assert_array_equal(np.isfinite(law)[used], keep[used])
  chosen = np.exp(np.take_along_axis(law, decodes[..., None], -1)[..., 0])
  np.testing.assert_allclose(chosen[used], arrays[f"greedy_path_{key}/greedy_token_prob"][used], atol=1e-5)


def test_several_greedy_decodes_and_rows_of_mixed_temperatures():
  arrays = reference("target")
  greedy, _ = t5x.decode(arrays, "target")
  assert (arrays["greedy_num_decodes_3/decodes"] == greedy[:, None]).all()
  cold = arrays["mixed_temperatures/temperature"] <= 1e-4
  assert cold.any() and not cold.all()
  np.testing.assert_array_equal(arrays["mixed_temperatures/decodes"][cold], greedy[cold])


def test_the_trained_draft_decodes_greedily_as_in_t5x():
  arrays = reference("trained")
  decodes, _ = t5x.decode(arrays, "trained_draft")
  np.testing.assert_array_equal(decodes, arrays["draft/greedy/decodes"])


def test_scores_of_each_token():
  for name in ("target", "draft", "tied"):
    arrays = reference(name)
    log_p = np.asarray(jax.nn.log_softmax(logits_along(name, arrays["decoder_target_tokens"])))
    chosen = np.take_along_axis(log_p, arrays["decoder_target_tokens"][..., None], -1)[..., 0]
    used = arrays["decoder_loss_weights"] > 0
    np.testing.assert_allclose(chosen[used], arrays["score_batch_tokens"][used], atol=1e-4)


def test_bfloat16_scores_of_its_own_greedy_path():
  arrays = reference("target_bfloat16")
  config = dataclasses.replace(t5x.model("target")[0].config, dtype="bfloat16")
  decodes = arrays["greedy_t0_raw_scores/decodes"]
  log_p = np.asarray(jax.nn.log_softmax(logits_along("target", decodes, config)))
  used = live(decodes)
  chosen = np.where(used, np.take_along_axis(log_p, decodes[..., None], -1)[..., 0], 0)
  # The fixtures state a mean error of .05 a logit; that of a sum of n stays below .05 n.
  error = np.abs(chosen.sum(-1) - arrays["greedy_t0_raw_scores/scores"])
  assert (error < 0.05 * used.sum(-1)).all()
