"""seqio tasks over a user's own files and over public data sets, and their examples as arrays.

This is the only file that imports seqio (and so TensorFlow).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools
import json
import os
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from specdec.data.batches import Examples
from specdec.data.prompts import Request
from specdec.data.vocabularies import ByteVocabulary, EOS_ID, SentencePieceVocabulary, Vocabulary

Task = seqio.Task | seqio.Mixture
Metric = Callable[[Sequence[str], Sequence[str]], Mapping[str, float]]


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


def _seqio_vocabulary(vocabulary: SentencePieceVocabulary | ByteVocabulary) -> seqio.Vocabulary:
  if isinstance(vocabulary, ByteVocabulary):
    return seqio.ByteVocabulary(extra_ids=vocabulary.extra_ids)
  return seqio.SentencePieceVocabulary(vocabulary.path, extra_ids=vocabulary.extra_ids)


def _our_vocabulary(vocabulary: seqio.Vocabulary) -> SentencePieceVocabulary | ByteVocabulary:
  if isinstance(vocabulary, seqio.ByteVocabulary):
    return ByteVocabulary(vocabulary.extra_ids)
  return SentencePieceVocabulary(vocabulary.sentencepiece_model_file, vocabulary.extra_ids)


def _register(
    name: str,
    source: seqio.DataSource,
    vocabulary,
    metrics: Sequence[Metric] = (),
    prefix: str = "",
    keys: Sequence[str] = ("inputs", "targets"),
    before: Sequence[Callable] = (),
) -> seqio.Task:
  words = _seqio_vocabulary(vocabulary)
  if prefix:
    before = [*before, seqio.map_over_dataset(lambda x: x | {"inputs": tf.strings.join([prefix, x["inputs"]])})]
  seqio.TaskRegistry.remove(name)
  return seqio.TaskRegistry.add(
      name,
      source=source,
      preprocessors=[*before, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
      output_features={key: seqio.Feature(words, add_eos=True) for key in keys},
      metric_fns=list(metrics),
  )


def parallel_text(
    name: str,
    vocabulary,
    inputs: Mapping[str, str | Sequence[str]],
    targets: Mapping[str, str | Sequence[str]],
    folder: str = "",
    prefix: str = "",
    metrics: Sequence[Metric] = (),
) -> seqio.Task:
  """Registers a task whose line i of `inputs` goes with line i of `targets`.

  Args:
    name: name of the seqio task; an older task of that name is replaced.
    vocabulary: a `SentencePieceVocabulary`.
    inputs: split to the file or files of source sentences (`.gz` is unpacked).
    targets: split to the file or files of target sentences.
    folder: put before every file name that is not absolute.
    prefix: put before every input, such as 'translate English to German: '.
    metrics: of the task, see `data.metrics`.

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

  return _register(name, seqio.FunctionDataSource(dataset_fn, splits=sorted(inputs)), vocabulary, metrics, prefix)


def _pairs_source(splits: Mapping[str, Any], folder: str, pair: Callable[[int, bytes], Sequence[str]]) -> seqio.DataSource:
  """Lines of the files of a split, each parsed by `pair(number, line)`."""

  def dataset_fn(split, shuffle_files, seed=None):
    # Read at once: an error within TensorFlow's threads would hide its message.
    lines = _lines(splits[split], folder).as_numpy_iterator()
    pairs = [pair(number, line) for number, line in enumerate(lines, start=1)]
    columns = {key: [p[i] for p in pairs] for i, key in enumerate(("inputs", "targets"))}
    return tf.data.Dataset.from_tensor_slices({key: tf.constant(column, tf.string) for key, column in columns.items()})

  return seqio.FunctionDataSource(dataset_fn, splits=sorted(splits))


def jsonl(
    name: str,
    vocabulary,
    splits: Mapping[str, str | Sequence[str]],
    folder: str = "",
    inputs_field: str = "inputs",
    targets_field: str = "targets",
    prefix: str = "",
    metrics: Sequence[Metric] = (),
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
    prefix: put before every input.
    metrics: of the task, see `data.metrics`.

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

  return _register(name, _pairs_source(splits, folder, pair), vocabulary, metrics, prefix)


def tsv(
    name: str,
    vocabulary,
    splits: Mapping[str, str | Sequence[str]],
    folder: str = "",
    inputs_column: int = 0,
    targets_column: int = 1,
    header: bool = False,
    prefix: str = "",
    metrics: Sequence[Metric] = (),
) -> seqio.Task:
  """Registers a task of lines whose columns are separated by tabs.

  Args:
    name: name of the seqio task; an older task of that name is replaced.
    vocabulary: a `SentencePieceVocabulary` or `ByteVocabulary`.
    splits: split to its file or files (`.gz` is unpacked).
    folder: put before every file name that is not absolute.
    inputs_column: counted from 0.
    targets_column: counted from 0.
    header: whether the first line of a split names the columns.
    prefix: put before every input.
    metrics: of the task, see `data.metrics`.

  Raises:
    ValueError: (when read) a file is missing, or a line has fewer columns; the
      message names the line, counted over all files.
  """

  def pair(number, line):
    columns = line.split(b"\t")
    if len(columns) <= max(inputs_column, targets_column):
      raise ValueError(
          f"task {name}: line {number}: expected at least {1 + max(inputs_column, targets_column)} columns separated by "
          f"tabs, found {len(columns)}: {line[:60].decode(errors='replace')!r}."
      )
    return columns[inputs_column], columns[targets_column]

  without_header = lambda dataset: dataset.skip(1) if header else dataset
  source = _pairs_source(splits, folder, pair)
  return _register(name, source, vocabulary, metrics, prefix, before=[without_header])


def plain_text(name: str, vocabulary, splits: Mapping[str, str | Sequence[str]], folder: str = "") -> seqio.Task:
  """Registers a language-modelling task: each line that is not empty is a target, and there are no inputs.

  Args:
    name: name of the seqio task; an older task of that name is replaced.
    vocabulary: a `SentencePieceVocabulary` or `ByteVocabulary`.
    splits: split to its file or files (`.gz` is unpacked).
    folder: put before every file name that is not absolute.

  Raises:
    ValueError: (when read) a file is missing.
  """

  def dataset_fn(split, shuffle_files, seed=None):
    lines = _lines(splits[split], folder).filter(lambda line: tf.strings.length(tf.strings.strip(line)) > 0)
    return lines.map(lambda line: {"targets": line})

  return _register(name, seqio.FunctionDataSource(dataset_fn, splits=sorted(splits)), vocabulary, keys=("targets",))


def tfds_text(
    name: str,
    vocabulary,
    tfds_name: str,
    targets_field: str,
    inputs_field: str | None = None,
    prefix: str = "",
    metrics: Sequence[Metric] = (),
    data_dir: str | None = None,
) -> seqio.Task:
  """Registers a task over a TensorFlow data set, prepared as the T5 paper did: a prefix before the input, nothing else.

  gin/tasks/ has the paper's WMT14 English-German and CNN/DailyMail, and LM1B.

  Args:
    name: name of the seqio task; an older task of that name is replaced.
    vocabulary: a `SentencePieceVocabulary` or `ByteVocabulary`.
    tfds_name: NAME/CONFIG:VERSION; downloaded at the first use, which needs the
      network.
    targets_field: the feature that is the target.
    inputs_field: the feature that is the input; None is a language-modelling
      task without inputs.
    prefix: put before every input.
    metrics: of the task, see `data.metrics`.
    data_dir: where TFDS keeps its data; None is its own default.

  Raises:
    ValueError: a prefix without inputs; or (when read) the data cannot be had.

  Source: Raffel et al. 2020, appendix D; t5/data/tasks.py and preprocessors.py of
  google-research/text-to-text-transfer-transformer.
  """
  if prefix and inputs_field is None:
    raise ValueError(f"task {name}: expected no prefix where there are no inputs, found {prefix!r}.")
  fields = {"targets": targets_field} | ({} if inputs_field is None else {"inputs": inputs_field})
  rename = seqio.map_over_dataset(lambda x: {key: x[field] for key, field in fields.items()})
  source = seqio.TfdsDataSource(tfds_name=tfds_name, tfds_data_dir=data_dir)
  return _register(name, source, vocabulary, metrics, prefix, sorted(fields), [rename])


def _read(task: Task | str, split: str, lengths: Mapping[str, int] | None) -> Iterator[Mapping[str, Any]]:
  task = seqio.get_mixture_or_task(task) if isinstance(task, str) else task
  splits = _splits(task)
  if split not in splits:
    raise ValueError(f"task {task.name}: expected a split among {sorted(splits)}, found {split!r}.")
  lengths = None if lengths is None else {key: lengths[key] for key in task.output_features}
  return task.get_dataset(lengths, split=split, shuffle=False, num_epochs=1).as_numpy_iterator()


def _splits(task: Task) -> Sequence[str]:
  source = getattr(task, "source", None)
  if not isinstance(source, seqio.TfdsDataSource):
    return task.splits
  try:
    source.tfds_dataset.builder.download_and_prepare()
    return list(task.splits)
  except Exception as error:  # TFDS lets through whatever its downloads raise.
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(
        f"task {task.name}: expected the data set {source.tfds_dataset.name}, found it neither on this disk nor to "
        f"download ({reason}); run it once online, or name the data_dir that holds it."
    ) from error


def examples(task: Task | str | Sequence[Task], split: str, input_length: int, target_length: int) -> Examples:
  """Reads a split of a task whole, as token ids.

  Args:
    task: a seqio task (or mixture) by value or by name, or several.
    split: 'train', 'validation', …
    input_length: longer inputs are cut to this, EOS kept.
    target_length: longer targets are cut to this, EOS kept.

  Returns:
    `Examples` in the order of the files. A task without inputs gives the encoder
    EOS alone.

  Raises:
    ValueError: a task has no such split, or its files are bad.
  """
  inputs, targets = [], []
  for one in [task] if isinstance(task, (str, Task)) else task:
    for example in _read(one, split, {"inputs": input_length, "targets": target_length}):
      inputs.append(np.asarray(example.get("inputs", [EOS_ID]), np.int32))
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
  vocabulary: SentencePieceVocabulary | ByteVocabulary


def texts(task: Task | str, split: str, count: int) -> Texts:
  """Reads the first `count` texts of a split, for BLEU or ROUGE; inputs are '' where a task has none."""
  task = seqio.get_mixture_or_task(task) if isinstance(task, str) else task
  found = [
      [example.get(f"{key}_pretokenized", b"").decode() for key in ("inputs", "targets")]
      for example in itertools.islice(_read(task, split, None), count)
  ]
  inputs, targets = ([pair[i] for pair in found] for i in range(2))
  return Texts(inputs, targets, _our_vocabulary(task.output_features["targets"].vocabulary))


def requests(task: Task | str, split: str, vocabulary: Vocabulary) -> list[Request]:
  """Every example of a split as something to decode: its preprocessed inputs, in the order of the files.

  Args:
    task: a seqio task (or mixture) by value or by name.
    split: 'train', 'validation', …
    vocabulary: of the models, which must be the task's.

  Raises:
    ValueError: no such task, split or example, a task without inputs, or one of another vocabulary.
  """
  try:
    task = seqio.get_mixture_or_task(task) if isinstance(task, str) else task
  except ValueError as error:
    raise ValueError(f"task: expected the name of a registered task, found {task!r}.") from error
  if "inputs" not in task.output_features:
    raise ValueError(f"task {task.name}: expected one with inputs, found {sorted(task.output_features)}.")
  theirs = _our_vocabulary(task.output_features["inputs"].vocabulary)
  if theirs.pieces() != vocabulary.pieces():
    raise ValueError(f"task {task.name}: expected the vocabulary of the target, found another one.")
  found = []
  for line, example in enumerate(_read(task, split, None), start=1):
    text = example.get("inputs_pretokenized")
    ids = tuple(int(token) for token in example["inputs"])
    ids = ids if ids[-1:] == (EOS_ID,) else (*ids, EOS_ID)
    found.append(Request(None if text is None else text.decode(), ids, (), line))
  if not found:
    raise ValueError(f"task {task.name}: expected at least one example in split {split!r}, found none.")
  return found
