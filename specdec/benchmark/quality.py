"""Quality of outputs against references: the scores that both decoders must share."""

from collections.abc import Mapping, Sequence

import sacrebleu

from specdec.data import metrics as data_metrics


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
  """sacreBLEU of detokenised text, tokenisation 13a, and its signature.

  Example:
    >>> score, signature = corpus_bleu(["Ein Hund rennt am Strand."], ["Ein Hund rennt am Strand."])
    >>> round(score), "tok:13a" in signature
    (100, True)
  """
  metric = sacrebleu.BLEU()
  score = metric.corpus_score(list(hypotheses), [list(references)])
  return score.score, str(metric.get_signature())


def score(metrics: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> Mapping[str, float]:
  """The scores of `metrics` by name, each in percent.

  Args:
    metrics: of 'bleu' and 'rouge'.
    hypotheses: outputs.
    references: one each.

  Raises:
    ValueError: an unknown metric.
  """
  found = {}
  for metric in metrics:
    if metric == "bleu":
      found["bleu"] = corpus_bleu(hypotheses, references)[0]
    elif metric == "rouge":
      found |= data_metrics.rouge(references, hypotheses)
    else:
      raise ValueError(f"metrics: expected 'bleu' or 'rouge', found {metric!r}.")
  return found
