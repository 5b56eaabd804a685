"""`data.metrics`: T5's choices, against sacreBLEU and against counting by hand."""

import numpy as np
import pytest
import sacrebleu

from specdec.data import metrics

TARGETS = ["Der Hund (braun) läuft, er läuft schnell.", "Zwei Kinder spielen im Garten."]
PREDICTIONS = ["Der Hund (braun) läuft und er läuft.", "Zwei Kinder spielen im Garten!"]


def test_bleu_is_sacrebleu_with_international_tokens():
  found = metrics.bleu(TARGETS, PREDICTIONS)
  metric = sacrebleu.BLEU(tokenize="intl")
  assert found == {"bleu": metric.corpus_score(PREDICTIONS, [TARGETS]).score}
  assert 0 < found["bleu"] < 100
  assert metrics.bleu(["a b c d e"], ["a b c d e"])["bleu"] == pytest.approx(100)


def lcs(a, b):
  table = np.zeros((len(a) + 1, len(b) + 1), int)
  for i, j in np.ndindex(len(a), len(b)):
    table[i + 1, j + 1] = table[i, j] + 1 if a[i] == b[j] else max(table[i, j + 1], table[i + 1, j])
  return table[-1, -1]


def f_measure(hits, predicted, wanted):
  return 100 * 2 * hits / (predicted + wanted)


def test_rouge_of_one_pair_by_hand():
  target, prediction = "the cat sat on the mat", "the cat was on a mat"
  found = metrics.rouge([target], [prediction])
  assert found["rouge1"] == pytest.approx(f_measure(4, 6, 6))
  assert found["rouge2"] == pytest.approx(f_measure(1, 5, 5))
  assert found["rougeLsum"] == pytest.approx(f_measure(lcs(target.split(), prediction.split()), 6, 6))


def test_rouge_l_counts_sentence_by_sentence():
  """T5 breaks summaries at ' . ': then sentences in another order still match."""
  target, prediction = "a b c . d e f", "d e f . a b c"
  assert metrics.rouge([target], [prediction])["rougeLsum"] == pytest.approx(100)
  glued = metrics.rouge([target.replace(" . ", " ")], [prediction.replace(" . ", " ")])
  assert glued["rougeLsum"] == pytest.approx(50)


def test_rouge_repeats_and_leaves_the_global_seed_alone():
  np.random.seed(7)
  expected = np.random.RandomState(7).random()
  found = metrics.rouge(TARGETS * 5, PREDICTIONS * 5)
  assert np.random.random() == expected
  assert found == metrics.rouge(TARGETS * 5, PREDICTIONS * 5)
  mean = np.mean([metrics.rouge([t], [p])["rouge1"] for t, p in zip(TARGETS, PREDICTIONS)])
  assert found["rouge1"] == pytest.approx(mean, abs=2)


@pytest.mark.parametrize("metric", [metrics.bleu, metrics.rouge])
def test_numbers_must_agree(metric):
  for targets, predictions in ((TARGETS, PREDICTIONS[:1]), ([], [])):
    with pytest.raises(ValueError, match="expected as many targets as predictions, found"):
      metric(targets, predictions)
