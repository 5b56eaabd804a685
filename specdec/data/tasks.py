"""seqio tasks over a user's own files, and their examples as arrays.

This is the only file that imports seqio (and so TensorFlow).
"""

from collections.abc import Mapping, Sequence
import os

import numpy as np
import seqio
import tensorflow as tf

from specdec.data.batches import Examples


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
    ValueError: the splits differ, or (when read) a file is missing.
  """
  if set(inputs) != set(targets):
    raise ValueError(f"task {name}: expected the same splits on both sides, found {sorted(inputs)} and {sorted(targets)}.")

  def dataset_fn(split, shuffle_files, seed=None):
    pairs = tf.data.Dataset.zip((_lines(inputs[split], folder), _lines(targets[split], folder)))
    return pairs.map(lambda x, y: {"inputs": x, "targets": y})

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
  """
  import json

  def records(files):
    for line in _lines(files, folder).as_numpy_iterator():
      record = json.loads(line)
      yield {"inputs": record[inputs_field], "targets": record[targets_field]}

  def dataset_fn(split, shuffle_files, seed=None):
    signature = {key: tf.TensorSpec((), tf.string) for key in ("inputs", "targets")}
    return tf.data.Dataset.from_generator(lambda: records(splits[split]), output_signature=signature)

  return _register(name, seqio.FunctionDataSource(dataset_fn, splits=sorted(splits)), vocabulary)


def examples(
    task: seqio.Task | str | Sequence[seqio.Task], split: str, input_length: int, target_length: int
) -> Examples:
  """Reads a split of a task whole, as token ids.

  Args:
    task: a seqio task (or mixture) by value or by name, or several.
    split: 'train', 'validation', …
    input_length: longer inputs are cut to this, EOS kept.
    target_length: longer targets are cut to this, EOS kept.

  Returns:
    `Examples` in the order of the files.
  """
  inputs, targets = [], []
  for one in [task] if isinstance(task, (str, seqio.Task)) else task:
    one = seqio.get_mixture_or_task(one) if isinstance(one, str) else one
    dataset = one.get_dataset(
        {"inputs": input_length, "targets": target_length}, split=split, shuffle=False, num_epochs=1
    )
    for example in dataset.as_numpy_iterator():
      inputs.append(np.asarray(example["inputs"], np.int32))
      targets.append(np.asarray(example["targets"], np.int32))
  return Examples(inputs, targets)
