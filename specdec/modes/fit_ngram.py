"""`--mode=fit_ngram`: counts the n-grams that draft for a target, from a seqio task or plain text."""

from collections.abc import Iterator, Sequence
import itertools
import sys
from typing import Any

from absl import logging
import jax
import tqdm

from specdec import models
from specdec.data import text
from specdec.data import vocabularies
from specdec.drafters import ngram_counts
from specdec.drafters.ngram import NgramTables

_PORTION = 20_000  # Texts that are counted at a time.


def fit_ngram(
    vocabulary: vocabularies.Vocabulary,
    output: str,
    input: str | Sequence[str] | None = None,
    task: Any = None,
    split: str = "train",
    order: int = 3,
    max_successors: int = 0,
    min_count: int = 1,
    length: int = 512,
) -> NgramTables:
  """Counts the targets of a task, or the lines of text files, and writes tables of every order up to `order`.

  Args:
    vocabulary: of the target that they will draft for.
    output: the `.npz` file; written whole or not at all.
    input: text in the language of the outputs, one a line; `.gz` is unpacked.
    task: a seqio task whose targets are counted; instead of `input`.
    split: of the task.
    order: the highest; a draft may use any order up to it.
    max_successors: entries kept a context, the most frequent ones; 0 keeps all.
    min_count: n-grams of order 3 and above that came less often are left out.
    length: longer texts are cut.

  Returns:
    The tables.

  Raises:
    ValueError: not exactly one of `input` and `task`, or bad files.
  """
  if (input is None) == (task is None):
    raise ValueError(f"fit_ngram: expected either input or task, found {'neither' if input is None else 'both'}.")
  counter = ngram_counts.Counter(vocabulary.size, order)
  if task is None:
    texts = _lines(vocabulary, input, length)
  else:
    from specdec.data import tasks  # TensorFlow, only where there is a task.

    texts = tasks.targets(task, split, length)
  with tqdm.tqdm(unit="text", disable=not sys.stderr.isatty()) as progress:
    while portion := list(itertools.islice(texts, _PORTION)):
      counter.add(portion)
      progress.update(len(portion))
  tables = counter.tables(max_successors, min_count)
  ngram_counts.save(output, tables, vocabulary.pieces())
  logging.info(
      "%d tokens of %d texts; entries by order: %s; %.1f MB of tables in %s.",
      counter.tokens,
      counter.texts,
      [len(tables.unigram), *(table.token.shape[0] - 1 for table in tables.orders)],
      sum(leaf.nbytes for leaf in jax.tree.leaves(tables)) / 1e6,
      output,
  )
  return tables


def _lines(vocabulary: vocabularies.Vocabulary, files: str | Sequence[str], length: int) -> Iterator[list[int]]:
  for name in [files] if isinstance(files, str) else files:
    for line in text.read_lines(models.resolve(name)):
      yield [*vocabulary.encode(line)[: length - 1], vocabularies.EOS_ID]
