"""`benchmark.acceptance`: beta on a text, against NumPy on tables; and the pooled estimate with its error."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from specdec import recipes
from specdec.benchmark import acceptance
from specdec.interfaces import Params
from tests import fakes

VOCAB, DEPTH = 5, 6


SETTINGS = (
    dict(temperature=1.0), dict(temperature=0.0), dict(temperature=0.7, top_k=3), dict(temperature=1.3, top_p=0.8)
)  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("prefix", [[[0]], [[0, 3, 2, 4]]], ids=["BOS", "with a prefix"])
def test_beta_is_sum_min(setting, prefix):
  target, draft = fakes.random_tables(3, VOCAB, DEPTH)
  text = np.int32([[2, 4, 3, 1], [3, 3, 2, 2]])
  found = acceptance.beta_on_text(
      fakes.table_model(), fakes.table_model(), recipes.sampling_transform(),
      Params(jnp.asarray(target), jnp.asarray(draft)), fakes.prompts(2, prefix=prefix), fakes.settings(2, **setting),
      text,
  )  # fmt: skip
  p, q = (fakes.table_law(table[0], **setting) for table in (target, draft))
  for row in range(2):
    for place in range(4):
      before = (*prefix[0][1:], *text[row, :place].tolist())
      assert float(found[row, place]) == pytest.approx(np.minimum(p(before), q(before)).sum(), abs=1e-5)


@pytest.mark.parametrize("setting", [dict(temperature=1.0), dict(temperature=0.7, top_k=3), dict(temperature=0.0)])
def test_beta_by_lenience(setting):
  """Against the two definitions of A.5, in NumPy."""
  target, draft = fakes.random_tables(4, VOCAB, DEPTH)
  text, leniences = np.int32([[2, 4, 3, 1], [3, 3, 2, 2]]), [1.0, 0.5, 0.1]
  found = acceptance.beta_on_text(
      fakes.table_model(), fakes.table_model(), recipes.sampling_transform(),
      Params(jnp.asarray(target), jnp.asarray(draft)), fakes.prompts(2), fakes.settings(2, **setting), text,
      jnp.asarray(leniences),
  )  # fmt: skip
  p, q = (fakes.table_law(table[0], **setting) for table in (target, draft))
  unchanged = fakes.table_law(target[0], temperature=1.0)
  for i, lenience in enumerate(leniences):
    for row in range(2):
      for place in range(4):
        before = tuple(text[row, :place].tolist())
        right = np.minimum(p(before) / lenience, q(before)).sum()
        if setting["temperature"] == 0 and lenience < 1:
          right = float(unchanged(before)[q(before).argmax()] >= lenience * unchanged(before).max())
        assert float(found[i, row, place]) == pytest.approx(right, abs=1e-5)


def test_by_position():
  statistics = types.SimpleNamespace(
      histogram=np.array([[2, 1, 0, 4], [0, 0, 1, 0], [9, 9, 9, 9]]), visited=np.array([[7, 5, 4], [1, 1, 1], [9, 9, 9]])
  )
  accepted, reached = acceptance.by_position(statistics, 2)
  assert accepted.tolist() == [6, 5, 4] and reached.tolist() == [8, 6, 5]


def test_estimate_pools_tokens_and_its_error_is_that_of_sentences():
  rng = np.random.default_rng(0)
  betas = [rng.random(n) for n in rng.integers(1, 30, 40)]
  found = acceptance.estimate_alpha(betas)
  every = np.concatenate(betas)
  assert found.alpha == pytest.approx(every.mean())
  assert (found.tokens, found.sentences) == (len(every), 40)
  # The jackknife over sentences estimates the same error.
  left_out = [np.concatenate(betas[:i] + betas[i + 1 :]).mean() for i in range(40)]
  jackknife = np.sqrt(39 / 40 * np.square(np.array(left_out) - np.mean(left_out)).sum())
  assert found.standard_error == pytest.approx(jackknife, rel=0.1)


def test_error_covers_the_truth():
  """Sentences differ in their mean, so that tokens are not independent; errors must be those of sentences."""
  rng = np.random.default_rng(1)
  z = []
  for _ in range(400):
    betas = [np.clip(rng.normal(m, 0.05, rng.integers(5, 15)), 0, 1) for m in rng.uniform(0.4, 0.8, 50)]
    found = acceptance.estimate_alpha(betas)
    z.append((found.alpha - 0.6) / found.standard_error)
  assert 0.9 < np.std(z) < 1.12  # 1, with a standard error of 0.035.
  assert abs(np.mean(z)) < 4 / np.sqrt(400)


def test_edges():
  one = acceptance.estimate_alpha([np.array([0.25, 0.75])])
  assert (one.alpha, one.standard_error, one.sentences) == (0.5, 0.0, 1)
  with_empty = acceptance.estimate_alpha([np.array([]), np.array([1.0]), np.array([0.5, 0.5])])
  assert with_empty.alpha == pytest.approx(2 / 3)
