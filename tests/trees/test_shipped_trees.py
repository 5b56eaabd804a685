"""Greedy output of every tree equals the plain decoder's, on all of test_2016_flickr, with the shipped pair."""

import gzip
import pathlib

import jax
import numpy as np
import pytest

from specdec import loop
from specdec import models
from specdec import recipes
from specdec.interfaces import Params
from specdec.probability import transforms
from tests import fakes

FOLDER = pathlib.Path(models.resolve("pretrained:ende"))
LENGTH, SIZE = 64, 50
ACCEPTANCE = (0.7, 0.15, 0.05, 0.03, 0.02)

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not (FOLDER / "target").exists(), reason="the shipped weights are not in this checkout"),
]

METHODS = {
    "specinfer": lambda t, d: recipes.specinfer(t, d, (3, 2, 1, 1)),
    "spectr": lambda t, d: recipes.spectr(t, d, 4, 4),
    "sequoia": lambda t, d: recipes.sequoia(t, d, ACCEPTANCE, 16),
    "dyspec": lambda t, d: recipes.dyspec(t, d, 16),
    "dyspec_threshold": lambda t, d: recipes.dyspec_threshold(t, d, 16),
}


@pytest.fixture(scope="module")
def plain(shared):
  """The pair, all sentences by length, their prompts in batches, and the plain decoder's tokens."""
  target, draft = models.pretrained("ende")
  text = gzip.decompress(shared("data/multi30k/test_2016_flickr.en.gz").read_bytes()).decode("utf-8").splitlines()
  assert len(text) == 1000
  text.sort(key=len)  # Rows of a batch end at about the same step.
  prompts = [target.prompt(text[start : start + SIZE], LENGTH) for start in range(0, len(text), SIZE)]
  params, settings = Params(target.params, draft.params), transforms.sampling(SIZE, 0.0)
  step = recipes.autoregressive(target.model)
  decode = lambda prompt: np.asarray(loop.generate(step, jax.random.key(0), params, prompt, settings, LENGTH).tokens)
  return target, draft, text, prompts, [decode(prompt) for prompt in prompts]


@pytest.mark.parametrize("method", METHODS)
def test_greedy_trees_say_what_the_plain_decoder_says(plain, method, record_property):
  target, draft, text, prompts, expected = plain
  params, settings = Params(target.params, draft.params), transforms.sampling(SIZE, 0.0)
  step = METHODS[method](target.model, draft.model)
  ties, steps, committed = 0, 0, 0
  for number, (prompt, tokens) in enumerate(zip(prompts, expected)):
    out = loop.generate(step, jax.random.key(0), params, prompt, settings, LENGTH)
    found = np.asarray(out.tokens)
    steps += int(out.statistics.steps.sum())
    committed += int(out.statistics.committed.sum())
    for row in np.flatnonzero((found != tokens).any(axis=1)):
      place = int(np.argmax(found[row] != tokens[row]))
      gap = fakes.near_tie(target, prompt, row, tokens[row], place)
      assert gap < 1e-4, f"{text[SIZE * number + row]!r}, token {place}: gap {gap}"
      ties += 1
  print(f"{method}: near ties {ties}, tokens a step {committed / steps:.3f}")
  record_property("near_ties", ties)
  assert ties <= 5 and committed / steps > 1.5
