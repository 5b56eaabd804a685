"""What the tests with T5X share: a seqio task over plain numbers, and one pair as T5X models and as T5X checkpoints."""

import dataclasses
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import seqio
import tensorflow as tf

from tests import fakes

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "specdec_numbers"
V = 16
EXAMPLES = {"train": 512, "validation": 32, "test": 12}
LENGTHS = {"inputs": 8, "targets": 10}
VOCABULARY = seqio.PassThroughVocabulary(V, eos_id=1)


def numbers(split: str, shuffle_files: bool = False, seed: int | None = None):
  """Sources of 3 to 7 numbers; the target says them backwards, each one higher."""
  del shuffle_files, seed
  generator = np.random.default_rng(sorted(EXAMPLES).index(split))
  rows = [generator.integers(3, V - 1, generator.integers(3, 8)) for _ in range(EXAMPLES[split])]
  examples = [{"inputs": row.astype(np.int32), "targets": (row[::-1] + 1).astype(np.int32)} for row in rows]
  return tf.data.Dataset.from_generator(
      lambda: iter(examples), output_signature={k: tf.TensorSpec([None], tf.int32) for k in ("inputs", "targets")}
  ).apply(tf.data.experimental.assert_cardinality(len(examples)))


if NAME not in seqio.TaskRegistry.names():
  _FEATURE = seqio.Feature(VOCABULARY, add_eos=True, dtype=tf.int32)
  seqio.TaskRegistry.add(
      NAME,
      source=seqio.FunctionDataSource(numbers, splits=tuple(EXAMPLES), num_input_examples=EXAMPLES),
      preprocessors=[seqio.preprocessors.append_eos],
      output_features={"inputs": _FEATURE, "targets": _FEATURE},
      metric_fns=[],
  )


def t5x_network(config):
  """T5X's own network of the sizes of one of ours."""
  from t5x.examples.t5 import network

  fields = [field.name for field in dataclasses.fields(network.T5Config)]
  return network.Transformer(network.T5Config(**{name: getattr(config, name) for name in fields}))


def t5x_model(module, decode_fn=None):
  """T5X's model around a network; it samples as `temperature_sample` unless told otherwise."""
  from t5x import adafactor
  from t5x import decoding
  from t5x import models

  return models.EncoderDecoderModel(
      module, VOCABULARY, VOCABULARY, adafactor.Adafactor(), decode_fn=decode_fn or decoding.temperature_sample
  )


def run_t5x(program: str, gin_file: pathlib.Path, devices: int = 1) -> None:
  """`python -m t5x.PROGRAM` as a user calls it."""
  environment = os.environ | {
      "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(os.path.isdir, sys.path)]),
      "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
  }
  command = [sys.executable, "-m", f"t5x.{program}", f"--gin_file={gin_file}", f"--gin_search_paths=.,{ROOT / 'gin'}"]
  run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
  assert run.returncode == 0, run.stderr[-3000:]


def batch_of(sources: np.ndarray, length: int, prompt=None) -> dict[str, np.ndarray]:
  """The batch of `predict_batch`: sources [B, S], and BOS and a prompt for each row."""
  inputs = np.zeros((len(sources), length), np.int32)
  for row, tokens in zip(inputs, prompt or ()):
    row[1 : 1 + len(tokens)] = tokens
  return {"encoder_input_tokens": np.asarray(sources, np.int32), "decoder_input_tokens": inputs}


def pair_variables(pair: fakes.T5Pair) -> dict:
  """The parameters of a `SpeculativeEncoderDecoderModel`."""
  return {"target": pair.variables, "draft": pair.draft_variables}


def plain(tree):
  """NumPy arrays."""
  return jax.tree.map(np.asarray, tree)
