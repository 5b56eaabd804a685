"""The shipped pair on real sentences: greedy speculation equals greedy decoding, and the promised quality.

The oracle of equality is the plain decoder, and of the plain decoder the
cached loop over Flax's own parameters (`benchmark.flax_loop`). On our own ten
sentences always; on the thousand of test_2016_flickr with --heavy, where the
corpus lies beside the checkout.
"""

import gzip
import pathlib

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import loop
from specdec import main
from specdec import models
from specdec import recipes
from specdec.benchmark import acceptance
from specdec.benchmark import flax_loop
from specdec.checkpoints import from_orbax
from specdec.interfaces import Params, StopCode
from specdec.networks.t5 import T5
from specdec.probability import transforms
from tests import fakes

FOLDER = pathlib.Path(models.resolve("pretrained:ende"))
LENGTH = 64

pytestmark = pytest.mark.skipif(not (FOLDER / "target").exists(), reason="the shipped weights are not in this checkout")


@pytest.fixture(scope="module")
def pair():
  return models.pretrained("ende")


@pytest.fixture(scope="module")
def sentences():
  return (FOLDER / "sentences.txt").read_text(encoding="utf-8").splitlines()


def first_difference(a, b):
  """Rows that differ, and where: [(row, place)]."""
  return [(int(r), int(np.argmax(a[r] != b[r]))) for r in np.flatnonzero((a != b).any(axis=1))]


def test_sizes_are_those_of_the_gin_files():
  main.parse_gin(["models/ende.gin"], [])
  for role, config in models.SHIPPED["ende"].items():
    with gin.config_scope(role):
      assert gin.get_configurable("t5.T5Config")() == config
  gin.clear_config()


@pytest.mark.parametrize("gamma", range(1, 9))
def test_greedy_speculation_equals_greedy_decoding_on_our_sentences(pair, sentences, gamma):
  target, draft = pair
  params = Params(target.params, draft.params)
  prompt = target.prompt(sentences)
  settings = transforms.sampling(len(sentences), 0.0)
  key = jax.random.key(0)
  plain = loop.generate(recipes.autoregressive(target.model), key, params, prompt, settings, LENGTH)
  fast = loop.generate(recipes.leviathan(target.model, draft.model, gamma), key, params, prompt, settings, LENGTH)
  np.testing.assert_array_equal(plain.tokens, fast.tokens)
  assert (np.asarray(plain.stop) == StopCode.EOS).all()
  assert fast.statistics.steps.sum() < plain.statistics.steps.sum()


def test_plain_decoding_equals_a_loop_over_flax_parameters(pair, sentences):
  target, _ = pair
  module = T5(models.SHIPPED["ende"]["target"])
  raw = jax.device_put(from_orbax.load(FOLDER / "target", dtype="float32"))
  prompt = target.prompt(sentences)
  settings = transforms.sampling(len(sentences), 0.0)
  plain = loop.generate(
      recipes.autoregressive(target.model), jax.random.key(0), Params(target.params), prompt, settings, LENGTH
  )
  tokens, lengths = flax_loop.greedy_decode(module, raw, prompt.tokens, LENGTH)
  np.testing.assert_array_equal(plain.tokens, tokens)
  np.testing.assert_array_equal(plain.lengths, lengths)


def test_each_weight_is_on_the_device_once(pair):
  for role, model in zip(("target", "draft"), pair):
    module = T5(models.SHIPPED["ende"][role])
    token = jnp.ones((1, 1), jnp.int32)
    expected = jax.eval_shape(module.init, jax.random.key(0), token, token)
    size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    assert size(model.params) == size(expected)


def flickr(shared, side):
  data = shared(f"data/multi30k/test_2016_flickr.{side}.gz").read_bytes()
  return gzip.decompress(data).decode("utf-8").splitlines()


@pytest.mark.heavy
def test_greedy_speculation_equals_greedy_decoding_on_test_2016_flickr(pair, shared, record_property):
  target, draft = pair
  params = Params(target.params, draft.params)
  sources = flickr(shared, "en")
  size = 50
  settings = transforms.sampling(size, 0.0)
  key = jax.random.key(0)
  plain_step = recipes.autoregressive(target.model)
  steps = {gamma: recipes.leviathan(target.model, draft.model, gamma) for gamma in range(1, 9)}
  ties = {gamma: 0 for gamma in steps}
  assert len(sources) == 1000
  for start in range(0, len(sources), size):
    prompt = target.prompt(sources[start : start + size], LENGTH)
    plain = np.asarray(loop.generate(plain_step, key, params, prompt, settings, LENGTH).tokens)
    for gamma, step in steps.items():
      fast = np.asarray(loop.generate(step, key, params, prompt, settings, LENGTH).tokens)
      for row, place in first_difference(plain, fast):
        gap = fakes.near_tie(target, prompt, row, plain[row], place)
        assert gap < 1e-4, f"sentence {start + row}, gamma {gamma}, token {place}: gap {gap}"
        ties[gamma] += 1
  record_property("near_ties", ties)
  print("near ties by gamma:", ties)
  assert sum(ties.values()) <= 8


@pytest.mark.heavy
def test_bleu_and_alpha_are_what_the_model_card_promises(pair, shared):
  import sacrebleu

  target, draft = pair
  params = Params(target.params, draft.params)
  sources, references = flickr(shared, "en"), flickr(shared, "de")
  size, plain_step = 50, recipes.autoregressive(target.model)
  hypotheses, betas = [], {0.0: [], 1.0: []}
  for start in range(0, len(sources), size):
    prompt = target.prompt(sources[start : start + size], LENGTH)
    for temperature in betas:
      settings = transforms.sampling(size, temperature)
      text = loop.generate(plain_step, jax.random.key(start), params, prompt, settings, LENGTH)
      if temperature == 0:
        hypotheses += target.texts(text)
      beta = acceptance.beta_on_text(
          target.model, draft.model, recipes.sampling_transform(), params, prompt, settings, text.tokens
      )
      betas[temperature] += [np.asarray(b[:n]) for b, n in zip(beta, np.asarray(text.lengths))]
  bleu = sacrebleu.corpus_bleu(hypotheses, [references]).score
  alpha = {t: acceptance.estimate_alpha(b) for t, b in betas.items()}
  print(f"BLEU {bleu:.2f}", alpha)
  assert bleu >= 30
  assert alpha[0.0].alpha >= 0.6
  assert alpha[1.0].alpha >= 0.5
