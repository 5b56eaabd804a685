"""Quality of outputs against references: the scores that both decoders must share."""

from collections.abc import Mapping, Sequence

import sacrebleu


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


def corpus_rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
  """ROUGE-1, -2 and -Lsum: mean F of stemmed words, in percent, sentences split as T5's evaluation splits them.

  Example:
    >>> {name: round(score) for name, score in corpus_rouge(["the cat sat"], ["the cat sat"]).items()}
    {'rouge1': 100, 'rouge2': 100, 'rougeLsum': 100}
  """
  from rouge_score import rouge_scorer  # Only for summaries; it takes a second to import.

  keys = ("rouge1", "rouge2", "rougeLsum")
  scorer = rouge_scorer.RougeScorer(keys, use_stemmer=True)
  lines = lambda text: text.replace(" . ", " .\n")
  scores = [scorer.score(lines(right), lines(ours)) for ours, right in zip(hypotheses, references, strict=True)]
  return {key: 100.0 * sum(score[key].fmeasure for score in scores) / len(scores) for key in keys}


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
      found |= corpus_rouge(hypotheses, references)
    else:
      raise ValueError(f"metrics: expected 'bleu' or 'rouge', found {metric!r}.")
  return found
