"""Metrics of the T5 paper, as T5's own code computes them: sacreBLEU and ROUGE.

Signatures are seqio's: `(targets, predictions) -> {name: value}`, values in
percent.
"""

from collections.abc import Sequence

import sacrebleu

ROUGE_KEYS = ("rouge1", "rouge2", "rougeLsum")


def _check(targets: Sequence[str], predictions: Sequence[str]) -> None:
  if len(targets) != len(predictions) or not len(targets):
    raise ValueError(f"metric: expected as many targets as predictions, found {len(targets)} and {len(predictions)}.")


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """sacreBLEU of detokenised text with T5's choices: international tokenisation, exponential smoothing.

  The default tokenisation of sacreBLEU is 13a (`benchmark.quality.corpus_bleu`);
  figures of the two are not comparable.

  Example:
    >>> round(bleu(["Ein Hund rennt am Strand."], ["Ein Hund rennt am Strand."])["bleu"])
    100

  Raises:
    ValueError: the two differ in number, or there is none.

  Source: t5/evaluation/metrics.py of google-research/text-to-text-transfer-transformer.
  """
  _check(targets, predictions)
  score = sacrebleu.corpus_bleu(
      list(predictions), [list(targets)], smooth_method="exp", smooth_value=0.0, lowercase=False, tokenize="intl"
  )
  return {"bleu": score.score}


def split_sentences(summary: str) -> str:
  r"""A sentence a line, which rougeLsum counts by: a newline after each ' . ', as T5 does.

  Example:
    >>> split_sentences("One . Two . Three .")
    'One .\nTwo .\nThree .'
  """
  return summary.replace(" . ", " .\n")


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """ROUGE-1, ROUGE-2 and summary-level ROUGE-L, F-measures, with T5's post-processing (`split_sentences`).

  No stemming. As in T5 each figure is the median of 1000 bootstrap samples, so
  that it moves in the second decimal; the samples follow NumPy's global seed,
  which is set here and put back.

  Example:
    >>> {key: round(value) for key, value in rouge(["the cat sat"], ["the cat"]).items()}
    {'rouge1': 80, 'rouge2': 67, 'rougeLsum': 80}

  Raises:
    ValueError: the two differ in number, or there is none.

  Source: t5/evaluation/metrics.py of google-research/text-to-text-transfer-transformer; Lin 2004.
  """
  import numpy as np
  from rouge_score import rouge_scorer  # Kept here: it brings NLTK.
  from rouge_score import scoring

  _check(targets, predictions)
  scorer = rouge_scorer.RougeScorer(ROUGE_KEYS)
  aggregator = scoring.BootstrapAggregator()
  for target, prediction in zip(targets, predictions):
    aggregator.add_scores(scorer.score(target=split_sentences(target), prediction=split_sentences(prediction)))
  state = np.random.get_state()
  try:
    np.random.seed(0)
    result = aggregator.aggregate()
  finally:
    np.random.set_state(state)
  return {key: float(result[key].mid.fmeasure * 100) for key in ROUGE_KEYS}
