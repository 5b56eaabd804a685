"""seqio tasks over a user's own files, and their examples as arrays.

This is the only file that imports seqio (and so TensorFlow).
"""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import json
import os
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from specdec.data.batches import Examples
from specdec.data.vocabularies import SentencePieceVocabulary

Task = seqio.Task | seqio.Mixture


def _lines(files: str | Sequence[str], folder: str = "") -> tf.data.Dataset:
  files = [os.path.join(folder, name) for name in ([files] if isinstance(files, str) else files)]
  missing = [name for name in files if not tf.io.gfile.exists(name)]
  if missing:
    raise ValueError(f"task: expected these files to exist: {missing}.")
  datasets = [tf.data.TextLineDataset(f, compression_type="GZIP" if f.endswith(".gz") else "") for f in files]
  dataset = datasets[0]
  for more in datasets[1:]:
    dataset = dataset.concatenate(more)
  return dataset


def _register(name: str, source: seqio.DataSource, vocabulary, lengths_needed=("inputs", "targets")) -> seqio.Task:
  spm = seqio.SentencePieceVocabulary(vocabulary.path, extra_ids=vocabulary.extra_ids)
  features = {key: seqio.Feature(spm, add_eos=True) for key in lengths_needed}
  seqio.TaskRegistry.remove(name)
  return seqio.TaskRegistry.add(
      name,
      source=source,
      preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
      output_features=features,
      metric_fns=[],
  )


def parallel_text(
    name: str,
    vocabulary,
    inputs: Mapping[str, str | Sequence[str]],
    targets: Mapping[str, str | Sequence[str]],
    folder: str = "",
) -> seqio.Task:
  """Registers a task whose line i of `inputs` goes with line i of `targets`.

  Args:
    name: name of the seqio task; an older task of that name is replaced.
    vocabulary: a `SentencePieceVocabulary`.
    inputs: split to the file or files of source sentences (`.gz` is unpacked).
    targets: split to the file or files of target sentences.
    folder: put before every file name that is not absolute.

  Raises:
    ValueError: the splits differ, or (when read) a file is missing or the two
      sides differ in their number of lines.
  """
  if set(inputs) != set(targets):
    raise ValueError(f"task {name}: expected the same splits on both sides, found {sorted(inputs)} and {sorted(targets)}.")

  def dataset_fn(split, shuffle_files, seed=None):
    sides = _lines(inputs[split], folder), _lines(targets[split], folder)
    counts = [int(side.reduce(np.int64(0), lambda count, _: count + 1)) for side in sides]
    if counts[0] != counts[1]:  # Zipping would drop the rest, and the sides may be shifted before that.
      raise ValueError(f"task {name}: split {split!r} has {counts[0]} lines of inputs and {counts[1]} of targets.")
    return tf.data.Dataset.zip(sides).map(lambda x, y: {"inputs": x, "targets": y})

  return _register(name, seqio.FunctionDataSource(dataset_fn, splits=sorted(inputs)), vocabulary)


def jsonl(
    name: str,
    vocabulary,
    splits: Mapping[str, str | Sequence[str]],
    folder: str = "",
    inputs_field: str = "inputs",
    targets_field: str = "targets",
) -> seqio.Task:
  """Registers a task of JSONL records, such as the ones `--mode=decode` writes.

  Args:
    name: name of the seqio task; an older task of that name is replaced.
    vocabulary: a `SentencePieceVocabulary`.
    splits: split to its file or files.
    folder: put before every file name that is not absolute.
    inputs_field: name of the source text in a record.
    targets_field: name of the target text; 'prediction' reads decoded output,
      which is sequence-level distillation (Kim and Rush 2016).

  Raises:
    ValueError: (when read) a file is missing, or a line is no object with both
      fields as text; the message names the line, counted over all files.
  """

  def pair(number, line):
    try:
      record = json.loads(line)
      found = [record[field] for field in (inputs_field, targets_field)]
    except (ValueError, KeyError, TypeError) as error:
      found = [error]
    if not all(isinstance(text, str) for text in found):
      raise ValueError(
          f"task {name}: line {number}: expected an object with texts {inputs_field!r} and {targets_field!r}, "
          f"found {line[:60].decode(errors='replace')!r}."
      )
    return found

  def dataset_fn(split, shuffle_files, seed=None):
    # Read at once: an error within TensorFlow's threads would hide its message.
    lines = _lines(splits[split], folder).as_numpy_iterator()
    pairs = [pair(number, line) for number, line in enumerate(lines, start=1)]
    columns = {key: [p[i] for p in pairs] for i, key in enumerate(("inputs", "targets"))}
    return tf.data.Dataset.from_tensor_slices({key: tf.constant(column, tf.string) for key, column in columns.items()})

  return _register(name, seqio.FunctionDataSource(dataset_fn, splits=sorted(splits)), vocabulary)


def _read(task: Task | str, split: str, lengths: Mapping[str, int] | None) -> Iterator[Mapping[str, Any]]:
  task = seqio.get_mixture_or_task(task) if isinstance(task, str) else task
  if split not in task.splits:
    raise ValueError(f"task {task.name}: expected a split among {sorted(task.splits)}, found {split!r}.")
  return task.get_dataset(lengths, split=split, shuffle=False, num_epochs=1).as_numpy_iterator()


def examples(task: Task | str | Sequence[Task], split: str, input_length: int, target_length: int) -> Examples:
  """Reads a split of a task whole, as token ids.

  Args:
    task: a seqio task (or mixture) by value or by name, or several.
    split: 'train', 'validation', …
    input_length: longer inputs are cut to this, EOS kept.
    target_length: longer targets are cut to this, EOS kept.

  Returns:
    `Examples` in the order of the files.

  Raises:
    ValueError: a task has no such split, or its files are bad.
  """
  inputs, targets = [], []
  for one in [task] if isinstance(task, (str, Task)) else task:
    for example in _read(one, split, {"inputs": input_length, "targets": target_length}):
      inputs.append(np.asarray(example["inputs"], np.int32))
      targets.append(np.asarray(example["targets"], np.int32))
  return Examples(inputs, targets)


def targets(task: Task | str, split: str, length: int) -> Iterator[np.ndarray]:
  """The targets of a split one by one, int32 ids with EOS, cut to `length`: for counting, without holding them all.

  Raises:
    ValueError: the task has no such split, or (when read) its files are bad.
  """
  for example in _read(task, split, {"inputs": 1, "targets": length}):
    yield np.asarray(example["targets"], np.int32)


class Texts(NamedTuple):
  """The first texts of a split as they stand in the files, and their vocabulary."""

  inputs: list[str]
  targets: list[str]
  vocabulary: SentencePieceVocabulary


def texts(task: Task | str, split: str, count: int) -> Texts:
  """Reads the first `count` texts of a split of `parallel_text` or `jsonl`, for BLEU."""
  task = seqio.get_mixture_or_task(task) if isinstance(task, str) else task
  found = [
      [example[f"{key}_pretokenized"].decode() for key in ("inputs", "targets")]
      for example in itertools.islice(_read(task, split, None), count)
  ]
  spm = task.output_features["targets"].vocabulary
  inputs, targets = ([pair[i] for pair in found] for i in range(2))
  return Texts(inputs, targets, SentencePieceVocabulary(spm.sentencepiece_model_file, spm.extra_ids))
